"""Look up shipped facts: models, hardware peaks, prices."""
