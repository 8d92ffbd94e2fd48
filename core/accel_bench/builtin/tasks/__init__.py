"""Plugins in the box that fill the slot `task`."""
