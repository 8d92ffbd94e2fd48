"""Record steps after the measured window, each part with steps of its own."""
