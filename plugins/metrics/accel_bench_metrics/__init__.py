"""What is measured beside the steps: devices from outside, checkpoints, matmuls alone."""
