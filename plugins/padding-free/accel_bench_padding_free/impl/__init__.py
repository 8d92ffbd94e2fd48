"""What needs torch and transformers."""
