"""Plugins in the box; they use the same hooks as everybody else."""
