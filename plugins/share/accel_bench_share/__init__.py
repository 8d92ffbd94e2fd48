"""Sharing of results: bundle files to verify and reproduce, and a web page of many bundles."""
