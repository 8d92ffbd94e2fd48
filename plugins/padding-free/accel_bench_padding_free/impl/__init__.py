"""Provide the parts that need torch and transformers."""
