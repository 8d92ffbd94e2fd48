"""Figures of recorded steps: kernels, host, communication, modules, and findings."""
