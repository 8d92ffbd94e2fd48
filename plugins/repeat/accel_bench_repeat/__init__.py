"""Scenarios that repeat published benchmarks of acceleration, each with a twin for a CPU."""
