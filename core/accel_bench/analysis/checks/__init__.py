"""Checks before a verdict: self-audit, comparability, convergence, gradients, noise."""
