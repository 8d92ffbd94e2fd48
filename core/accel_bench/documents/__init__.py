"""Documents: strict models, YAML, TOML, canonical JSON, files, redaction."""
