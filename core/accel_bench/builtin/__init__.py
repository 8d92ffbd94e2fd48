"""Plugins that core measures with where nothing else is installed."""
