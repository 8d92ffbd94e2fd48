"""Activations until the backward pass: computed again, or kept on the host."""
