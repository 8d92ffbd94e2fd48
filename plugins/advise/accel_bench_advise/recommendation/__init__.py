"""Recommend a stack, a batch and a device from stored runs."""
