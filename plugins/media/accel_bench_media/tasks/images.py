"""The tasks of images: `image-classification`, `image-text` and `image-text-to-text`."""

from __future__ import annotations

from accel_bench import (
    Batch,
    Experiment,
    Held,
    Loss,
    Options,
    Run,
    Task,
    held_tokens,
    hookimpl,
)


class ImageClassification(Task[Options]):
    """Trains image classifiers by cross-entropy, each image once; what is counted are images."""

    counts = "images"
    model_class = "AutoModelForImageClassification"
    families = frozenset({"vision"})

    def held(self, batch: Batch) -> Held:
        """Return the numbers of images and of labels in a batch, as lower and upper bounds."""
        images, labels = len(batch.inputs["pixel_values"]), len(batch.inputs["labels"])
        return Held((images, images), (images, images), (labels, labels))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy loss."""
        from accel_bench.modeling.losses import labelled_loss

        return labelled_loss


class ImageText(Task[Options]):
    """Trains pairs of encoders such as CLIP by contrast (Radford et al. 2021, arXiv:2103.00020).

    Negatives are the other images of the micro-batch on the same device, so the loss depends on the
    batch size. The counted unit is a pair of image and caption.
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
        """Return the number of pairs in a batch, as lower and upper bound of each count."""
        pairs = len(batch.inputs["pixel_values"]), len(batch.inputs["input_ids"])
        return Held((min(pairs), min(pairs)), (min(pairs), min(pairs)), (min(pairs), min(pairs)))

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> list[str]:
        """Return a reason if a micro-batch has only one pair, whose loss is always 0."""
        if experiment.scenario.train.micro_batch_size > 1:
            return []
        return [
            "a pair that is alone in its micro-batch has no other to be told from: give "
            "train.micro_batch_size, 2 or more"
        ]

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the contrastive loss."""
        from accel_bench_media.tasks.image_text_impl import contrastive_loss

        return contrastive_loss


class ImageTextToText(Task[Options]):
    """Trains decoders that see images, by the loss that the model computes itself on the answers.

    The counted unit is a token, image tokens included.
    """

    model_class = "AutoModelForImageTextToText"
    families = frozenset({"multimodal"})

    def held(self, batch: Batch) -> Held | None:
        """Return the fewest and the most processed, real and supervised tokens of a batch.

        The bounds allow for the model's shift of its labels by one. Returns None without token ids.
        """
        return held_tokens(batch, shifts=True)
