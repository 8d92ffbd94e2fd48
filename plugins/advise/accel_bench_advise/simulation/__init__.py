"""Simulate a training step on tensors without memory, and count what it would take."""
