"""`accel-bench ab` and `bisect`: training commands compared, observed from within."""
