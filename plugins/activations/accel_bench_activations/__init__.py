"""Stack plugins that recompute activations in the backward pass, or offload them to the host."""
