"""Checks of a machine and of stored results: `doctor` and `results check`."""
