"""Discovery, checks, activation and description of plugins."""
