"""Acceleration plugins in the box."""
