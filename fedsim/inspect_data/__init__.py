"""Looking at a collection: on a terminal, as figures and as a page."""
