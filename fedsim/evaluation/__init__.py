"""Scores of a model, every round and at the end."""
