"""Checks of a machine, and of what was stored on it: `doctor` and `results check`."""
