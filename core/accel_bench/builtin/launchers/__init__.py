"""Launcher plugins in the core."""
