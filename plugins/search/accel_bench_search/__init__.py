"""Searches by real runs: what fits, and the best settings."""
