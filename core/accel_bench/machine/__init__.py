"""Readings of the machine: devices and their state, process memory, libraries, provenance."""
