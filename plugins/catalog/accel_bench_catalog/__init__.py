"""Commands that list what a scenario can name: devices, models, stacks, plugins and keys."""
