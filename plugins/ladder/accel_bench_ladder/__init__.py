"""The ablation ladder: stacks that differ by one item, and what each item adds."""
