"""Public evaluation protocols: what they print, write and draw."""
