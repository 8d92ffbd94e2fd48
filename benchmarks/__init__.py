"""accel-bench measuring itself: what it adds to a command, to a listing and to a training step."""
