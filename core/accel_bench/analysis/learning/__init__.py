"""Learning curves: loss against steps, tokens, seconds and cost, over rounds and seeds."""
