"""The task `image-classification`: a model says which of some classes an image shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_bench import Batch, Held, Loss, Options, Run, Task, hookimpl


class ImageClassification(Task[Options]):
    """Trains image classifiers by cross-entropy, each image once; what is counted are images."""

    counts = "images"
    model_class = "AutoModelForImageClassification"
    families = frozenset({"vision"})

    def held(self, batch: Batch) -> Held:
        """Return the images of a batch."""
        images, labels = len(batch.inputs["pixel_values"]), len(batch.inputs["labels"])
        return Held((images, images), (images, images), (labels, labels))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy."""
        return classification_loss


def classification_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the sum of the cross-entropies of images, divided by the images of the step."""
    from accel_bench.modeling.losses import token_loss

    logits = model(pixel_values=inputs["pixel_values"]).logits
    return token_loss(logits, inputs["labels"], supervised_in_step)
