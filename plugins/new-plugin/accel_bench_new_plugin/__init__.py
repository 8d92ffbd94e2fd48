"""The command `accel-bench plugins new`, which writes a Python distribution with a new plugin."""
