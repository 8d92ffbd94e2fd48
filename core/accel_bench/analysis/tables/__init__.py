"""Experiments arranged in tables: pivots, sweep points, groups, and the figures in them."""
