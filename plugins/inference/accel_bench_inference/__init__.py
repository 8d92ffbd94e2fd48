"""Inference engines: transformers' `generate` in the run's own process, or a server."""
