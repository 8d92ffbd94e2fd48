"""Recording of steps after the measured window: time and memory in separate steps."""
