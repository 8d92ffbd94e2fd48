"""Plugins: found, checked, activated and described."""
