"""Modules and functions that the benchmarks build; these import torch."""
