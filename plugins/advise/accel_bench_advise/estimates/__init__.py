"""Estimate memory, speed and money of an experiment from a simulation of its step."""
