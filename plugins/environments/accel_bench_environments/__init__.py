"""Python environments that a scenario names, which are found, or built if they are missing."""
