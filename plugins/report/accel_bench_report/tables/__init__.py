"""Stored experiments in tables: pivots, groups by setting, scaling."""
