"""What a mechanism or a strategy claims, measured."""
