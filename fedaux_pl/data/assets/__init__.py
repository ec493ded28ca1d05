"""Small data files of the package, their licenses, and the scripts that built them."""
