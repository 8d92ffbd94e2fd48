"""Benchmarks of operations, blocks and small models at the shapes of published models.

Importing these modules is light: only building a benchmark imports torch, in `impl`.
"""
