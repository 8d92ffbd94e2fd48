"""The engine `hf-trainer`: steps through `transformers.Trainer`."""
