"""Scenarios: their models, their files, and the experiments they expand into."""
