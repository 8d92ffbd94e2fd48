"""Engine plugins in the box."""
