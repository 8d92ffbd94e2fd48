"""Parts of `padding-free` that import torch and transformers."""
