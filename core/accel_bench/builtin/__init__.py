"""Plugins in the box, written with the same hooks as any other plugin."""
