"""The commands `profile`, for the time of a training step by module, and `scenarios count`, for
its operations by source line."""
