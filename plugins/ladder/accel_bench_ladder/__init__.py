"""Ablation ladders: stacks that differ by one item, and the effect of each item."""
