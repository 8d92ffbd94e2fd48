"""Plugins in the core package, which suffice to measure without any other plugin."""
