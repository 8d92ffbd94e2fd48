"""Files and their content: strict models, YAML, TOML, canonical JSON, redaction."""
