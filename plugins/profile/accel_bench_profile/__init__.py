"""The commands `profile` and `scenarios count`: time and work of a step, by part."""
