"""Tables of the names that a scenario can use: devices, models and stacks."""
