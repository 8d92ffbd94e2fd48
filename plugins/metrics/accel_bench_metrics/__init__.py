"""Metrics plugins: `nvml`, `checkpoint`, `host-memory` and `matmul-roofline`."""
