"""The task `image-text`: two encoders give an image and its caption the same place."""

from __future__ import annotations

from accel_bench import Batch, Held, Loss, Options, Run, Task, hookimpl


class ImageText(Task[Options]):
    """Trains pairs of encoders such as CLIP by contrast (Radford et al. 2021, arXiv:2103.00020).

    An image is told from the others of its micro-batch on its device: other batch sizes are another
    loss. What is counted are pairs of an image and its caption.
    """

    counts = "pairs"
    model_class = "AutoModelForZeroShotImageClassification"
    families = frozenset({"multimodal"})
    batch_dependent = True

    def held(self, batch: Batch) -> Held:
        """Return the pairs of a batch."""
        pairs = len(batch.inputs["pixel_values"]), len(batch.inputs["input_ids"])
        return Held((min(pairs), min(pairs)), (min(pairs), min(pairs)), (min(pairs), min(pairs)))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the contrastive loss."""
        from accel_bench.builtin.tasks.image_text_impl import contrastive_loss

        return contrastive_loss
