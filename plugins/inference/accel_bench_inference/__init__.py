"""Engines that answer requests: by transformers in the worker, or by a server."""
