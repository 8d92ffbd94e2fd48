"""Tasks of text beside `causal-lm`, with data of instructions, preferences and pairs."""
