"""Parallelism plugins in the box."""
