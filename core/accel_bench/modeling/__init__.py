"""Loading and changing torch models: public helpers for plugins, which may change before 1.0."""
