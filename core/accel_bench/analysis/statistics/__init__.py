"""Estimate, compare and test: the statistics behind every verdict."""
