"""Searches by real runs: `fit` for the largest value in memory, `tune` for the best settings."""
