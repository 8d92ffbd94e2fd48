"""The stack plugin `attention`, which chooses the kernels of attention."""
