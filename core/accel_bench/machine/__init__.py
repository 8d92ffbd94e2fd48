"""The machine: its devices and their state, process memory, libraries, provenance."""
