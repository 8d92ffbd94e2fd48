"""Optimizer plugins in the box."""
