"""Task `causal-lm`: a decoder predicts each token from the tokens before it."""

from __future__ import annotations

from accel_bench import Batch, Held, Options, Task, held_tokens


class CausalLM(Task[Options]):
    """Trains decoders to predict the next token, by the loss that the model computes itself."""

    families = frozenset({"text-generation", "multimodal"})

    def held(self, batch: Batch) -> Held | None:
        """Return the fewest and the most tokens of a batch, for each count; None without token ids.
        The bounds allow for the model's shift of its labels by one."""
        return held_tokens(batch, shifts=True)
