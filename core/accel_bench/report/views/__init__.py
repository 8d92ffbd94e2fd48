"""What is shown: one module for each thing, which puts its tables and its documents together."""
