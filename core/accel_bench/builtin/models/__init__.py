"""Model and adapter plugins in the box."""
