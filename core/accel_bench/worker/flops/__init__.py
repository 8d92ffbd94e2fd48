"""Tracing of a training model's workload: its matrix products and attentions, to count FLOPs."""
