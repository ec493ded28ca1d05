"""Reports: tables, figures and a page of a sweep, and the paper's figures that need no sweep."""
