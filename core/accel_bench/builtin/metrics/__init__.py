"""Metric plugins in the box."""
