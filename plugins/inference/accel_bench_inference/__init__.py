"""Inference engines: transformers' `generate` in the worker, or a server."""
