"""Reading, writing, validation and redaction of files in YAML, TOML and JSON."""
