"""Run a plan: start ranks, supervise them, end them, and turn every outcome into one result."""
