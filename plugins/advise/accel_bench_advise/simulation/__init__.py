"""Simulation of a training step on tensors without memory, which counts memory and work."""
