"""Command line of accel-bench: one short module per command."""
