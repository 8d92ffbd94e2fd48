"""`accel-bench plugins new`: write the distribution of a new plugin."""
