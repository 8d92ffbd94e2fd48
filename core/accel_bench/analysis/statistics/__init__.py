"""Statistics behind verdicts: estimates, intervals and tests."""
