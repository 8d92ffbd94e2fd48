"""What becomes of activations until the backward pass: computed again, or kept on the host."""
