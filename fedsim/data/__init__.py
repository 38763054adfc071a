"""Data sets of images that belong to users: stored, read, decoded and transformed."""
