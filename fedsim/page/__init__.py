"""One HTML page from tables and figures, in one file that needs no network."""
