"""Where the time of a step goes, and what it does: the commands `profile` and `scenarios count`."""
