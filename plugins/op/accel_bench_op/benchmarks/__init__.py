"""Benchmarks of operations, blocks and small models at shapes that are published.

The modules here are light: a benchmark imports torch when it builds something, in `impl`.
"""
