"""Output for people and programs: tables, JSON, CSV, Markdown."""
