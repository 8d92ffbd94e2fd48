"""Tables that ship with accel-bench: models, peak figures of hardware, and prices."""
