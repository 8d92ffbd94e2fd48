"""Shipped facts: models, peaks of hardware, prices."""
