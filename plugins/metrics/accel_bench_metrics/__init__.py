"""Metrics plugins: `nvml`, `checkpoint` and `matmul-roofline`."""
