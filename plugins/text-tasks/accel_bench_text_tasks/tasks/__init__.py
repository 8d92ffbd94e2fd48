"""What a model of text learns beside the next token, and how its loss is computed."""
