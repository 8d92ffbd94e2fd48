"""What recorded steps say: kernels, the host, communication, and what to look at first."""
