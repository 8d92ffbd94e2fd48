"""The commands `accel-bench ab` and `bisect`, which time unmodified training commands."""
