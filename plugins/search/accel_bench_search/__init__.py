"""Searches by real runs: what fits, the best settings, the best stack."""
