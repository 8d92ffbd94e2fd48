"""The task `image-classification`: a model says which of some classes an image shows."""

from __future__ import annotations

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
        from accel_bench.modeling.losses import labelled_loss

        return labelled_loss
