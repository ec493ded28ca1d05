"""Small data files that travel with the package, their licences, and what built them."""
