"""Tracing the workload (FLOPs) of the model that trains."""
