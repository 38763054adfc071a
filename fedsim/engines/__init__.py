"""Grids: where clients run."""
