"""Plugins: they are found, checked, activated and described."""
