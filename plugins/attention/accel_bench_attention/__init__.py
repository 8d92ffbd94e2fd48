"""The kernels of attention."""
