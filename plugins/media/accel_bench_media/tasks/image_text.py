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

    # It learns from small differences: in random weights the cosines of a batch's images and
    # captions have a spread of 0.08. Over 8 steps of `image-text-cpu` under LoRA bases of 4 bits
    # moved updates by 0.52 to 0.87, float8 by 0.17 to 0.51 and int8 by 0.07 to 0.12 (5 seeds),
    # where plugins declare 0.7, 0.3 and 0.2. That is what rounding does: a plain model with weights
    # rounded by hand trained as each of those in 4 bits and float8, to 4 digits of the distance,
    # and normal noise of a tenth of the weights' spread moved updates by 0.51 to 0.7.
    update_sensitivity = 1.8

    def held(self, batch: Batch) -> Held:
        """Return the pairs of a batch."""
        pairs = len(batch.inputs["pixel_values"]), len(batch.inputs["input_ids"])
        return Held((min(pairs), min(pairs)), (min(pairs), min(pairs)), (min(pairs), min(pairs)))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the contrastive loss."""
        from accel_bench_media.tasks.image_text_impl import contrastive_loss

        return contrastive_loss
