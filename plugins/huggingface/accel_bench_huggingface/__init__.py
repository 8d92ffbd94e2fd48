"""Models of transformers, adapters of PEFT, and tokens for them: drawn, or of texts."""
