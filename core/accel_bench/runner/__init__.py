"""Execution of a plan: starts, supervises and ends ranks, and makes a result of every attempt."""
