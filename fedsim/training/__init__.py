"""Training on one machine's examples: one step, one user."""
