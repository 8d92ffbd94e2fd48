"""Launcher plugins in the box."""
