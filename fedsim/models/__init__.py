"""Models, and how their weights are initialized and exchanged."""
