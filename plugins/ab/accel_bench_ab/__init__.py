"""`accel-bench ab`: any training commands side by side, observed from within, judged as stacks."""
