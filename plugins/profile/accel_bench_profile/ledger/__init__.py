"""Ledgers of a training step's counted work, and differences between two ledgers."""
