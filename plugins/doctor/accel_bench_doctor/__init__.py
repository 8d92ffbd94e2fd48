"""`accel-bench doctor`: installed versions, known conflicts, and the machine's noise floor."""
