"""Python environments that a scenario names: located, or built if missing."""
