"""Read and write documents: strict models, YAML, TOML, canonical JSON, files, redaction."""
