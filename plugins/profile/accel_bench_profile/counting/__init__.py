"""Count what one training step does, in a step of its own that is not timed."""
