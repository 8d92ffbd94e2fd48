"""Trace the workload of the model that trains."""
