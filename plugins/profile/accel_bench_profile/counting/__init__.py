"""Counting of one training step's work, in a separate step without timing."""
