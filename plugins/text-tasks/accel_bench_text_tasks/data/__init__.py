"""Data plugins of instructions, preferences and text pairs, from files or generated."""
