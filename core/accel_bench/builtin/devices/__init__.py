"""Device types in the box: CPUs, and GPUs by CUDA, ROCm and Metal."""
