"""Analysis of stored results: pure functions that compute figures, verdicts and tables."""
