"""Start ranks, watch them, end them, and turn every ending into one result."""
