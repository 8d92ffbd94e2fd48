"""Check a row before it is believed: self-audit, comparability, convergence, gradients, noise."""
