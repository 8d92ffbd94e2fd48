"""Estimates of memory, speed and cost before a run, and recommendations of stacks."""
