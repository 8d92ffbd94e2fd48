"""Numbers from results: pure functions, computed when read."""
