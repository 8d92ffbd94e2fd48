"""Models of transformers, adapters of PEFT, and token data, synthetic or from texts."""
