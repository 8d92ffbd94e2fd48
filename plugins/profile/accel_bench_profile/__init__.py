"""The commands `profile` and `scenarios count`, which show time and work of a step by part."""
