"""Scenarios that repeat published acceleration benchmarks, each with a smaller one for a CPU."""
