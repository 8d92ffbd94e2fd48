"""Models of transformers, adapters of PEFT, and data of tokens, synthetic or from texts."""
