"""Tasks of text beside `causal-lm`, and data of prompts, answers, preferences and pairs."""
