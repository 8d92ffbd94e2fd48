"""Prompts with answers, preferences, and pairs of texts: read, drawn from Python or made up."""
