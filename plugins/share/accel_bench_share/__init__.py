"""Sharing of results: bundles to verify and reproduce, and a web page of many bundles."""
