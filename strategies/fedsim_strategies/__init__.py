"""Aggregation strategies, one a file, each written as a user's own would be."""
