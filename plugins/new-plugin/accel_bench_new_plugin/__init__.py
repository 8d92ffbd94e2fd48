"""The command `accel-bench plugins new`, which writes the Python distribution of a new plugin."""
