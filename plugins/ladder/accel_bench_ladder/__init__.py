"""Ablation ladders: stacks that differ by one item (plugin or setting), and each item's effect."""
