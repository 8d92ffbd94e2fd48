"""Plugins of the core, which suffice to measure without any other."""
