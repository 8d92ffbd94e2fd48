"""Tasks on text other than `causal-lm`, with data of instructions, preferences and pairs."""
