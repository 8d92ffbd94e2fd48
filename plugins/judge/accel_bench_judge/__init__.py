"""`judge`: training steps of others, each a Python file, against a reference step."""
