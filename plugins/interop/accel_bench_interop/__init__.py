"""Results and scenarios of other programs: read, and written as they write theirs."""
