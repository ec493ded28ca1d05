"""Small data files of the package and their licenses; `tools/` has the scripts that built them."""
