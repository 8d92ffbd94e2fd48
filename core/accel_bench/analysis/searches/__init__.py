"""Searches by real runs: what fits, what trains best, which stack wins a race."""
