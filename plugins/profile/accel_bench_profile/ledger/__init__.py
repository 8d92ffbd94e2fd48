"""Ledgers of a training step: what it does, counted, and the differences between two of them."""
