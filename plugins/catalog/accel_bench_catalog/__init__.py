"""Commands that list the names a scenario can use: devices, models and stacks."""
