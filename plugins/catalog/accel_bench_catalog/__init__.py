"""What has a name, as tables: devices, models and stacks."""
