"""Metrics of a run computed from its samples: speed, utilization, memory, cost."""
