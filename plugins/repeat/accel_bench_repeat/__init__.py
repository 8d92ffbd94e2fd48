"""Scenarios that repeat published acceleration benchmarks, each with a smaller form for a CPU."""
