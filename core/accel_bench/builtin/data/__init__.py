"""Data plugins in the box."""
