"""Compute the metrics of a run from its samples: speed, utilization, memory, cost."""
