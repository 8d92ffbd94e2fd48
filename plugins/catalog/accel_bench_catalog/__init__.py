"""Commands that list the names a scenario can use: devices, models, stacks and keys."""
