"""Read back what really runs, to compare it with what was requested."""
