"""Measure accel-bench itself: its overhead of a command, a listing and a training step."""
