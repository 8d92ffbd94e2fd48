"""Python environments that a scenario names: found, or built where they are missing."""
