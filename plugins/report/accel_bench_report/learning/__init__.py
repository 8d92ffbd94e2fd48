"""How stacks learned: loss against steps, tokens, seconds and money."""
