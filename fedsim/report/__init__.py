"""Finished runs, compared: one page, its figures, and the numbers as CSV."""
