"""Readers and writers of other programs' results, and readers of their benchmark configurations."""
