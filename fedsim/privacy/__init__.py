"""Mechanisms, and what they spend."""
