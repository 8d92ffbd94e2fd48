"""Placeholder until the plugin is written."""
