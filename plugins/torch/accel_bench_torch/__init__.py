"""Training in plain torch: the loop, its optimizers, DistributedDataParallel, and GPU types."""
