"""Regression gate, history and claims: commands that fail if training becomes slower."""
