"""The task `image-text-to-text`: a decoder answers a question about an image."""

from __future__ import annotations

from accel_bench import Batch, Held, Options, Task, held_tokens


class ImageTextToText(Task[Options]):
    """Trains decoders that see images, by the loss that the model computes itself on the answers.

    What is counted are tokens, those that stand for the image among them.
    """

    model_class = "AutoModelForImageTextToText"
    families = frozenset({"multimodal"})

    def held(self, batch: Batch) -> Held | None:
        """Return the tokens of a batch; the model shifts its labels."""
        return held_tokens(batch, shifts=True)
