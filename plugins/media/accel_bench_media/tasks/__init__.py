"""What a model of images or speech learns, and how its loss is computed."""
