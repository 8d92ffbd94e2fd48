"""How a model learned: loss against steps, tokens, seconds and dollars, over rounds and seeds."""
