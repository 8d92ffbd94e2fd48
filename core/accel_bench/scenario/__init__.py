"""Scenarios: their models, their files, and the experiments that a scenario expands into."""
