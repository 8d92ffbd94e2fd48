"""Learning of stacks: loss against steps, tokens, seconds and money."""
