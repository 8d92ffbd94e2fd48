"""The commands `profile` and `scenarios count`: the time of a step by part, and what it does."""
