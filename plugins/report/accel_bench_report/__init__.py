"""Pages, pivots, summaries, scaling and convergence of stored results."""
