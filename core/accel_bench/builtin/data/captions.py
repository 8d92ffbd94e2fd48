"""The data plugin `captions`: pictures with a caption each, or with a question and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from accel_bench import Batch, Experiment, Plugin, Run, hookimpl, model_config
from accel_bench.builtin.data.images import ImageOptions, drawing_problems, fitting_problems

if TYPE_CHECKING:
    from accel_bench.builtin.data.images_impl import ImageDataset


class CaptionOptions(ImageOptions):
    """Which pictures, and what is asked about them."""

    question: str = Field("What is this?", min_length=1, max_length=1_000)
    """What a model that generates text is asked about every image; it answers with the caption."""


class Captions(Plugin[CaptionOptions]):
    """Seeded images with their names as captions: patterns, characters or words.

    A token is a byte of the text, so that any vocabulary is large enough; `data.sequence_length` is
    the longest text.
    """

    Options = CaptionOptions
    tasks = frozenset({"image-text", "image-text-to-text"})

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return a digest of the fonts that are drawn with; None where nothing is drawn."""
        return None if self.options.source == "synthetic" else self.options.fonts_digest()

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Return why the images cannot be drawn, or do not fit the model."""
        yield from drawing_problems(self.options)
        config: dict[str, Any] = dict(model_config(experiment.scenario.model) or {})
        vision = config.get("vision_config")
        if isinstance(vision, dict):
            yield from fitting_problems(self.options, vision.get("image_size"))

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Draw in a process that is not measured."""
        from accel_bench.builtin.data import images_impl

        if self.options.source != "synthetic":
            images_impl.drawn(run, self.options)

    @hookimpl
    def load_data(self, run: Run) -> ImageDataset:
        """Make up the images from `data.seed`, or map what was drawn into memory."""
        from accel_bench.builtin.data import images_impl

        dataset = images_impl.load(run, self.options)
        run.on_evidence(dataset.evidence)
        return dataset

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield micro-batches: images with captions, or with questions and answers as the task
        says."""
        from accel_bench.builtin.data import captions_impl

        return captions_impl.batches_of(run, self.options)

    @hookimpl
    def build_evaluation_batches(self, run: Run) -> Iterable[Batch]:
        """Return the batches of the images with texts that are held out."""
        from accel_bench.builtin.data import captions_impl

        return captions_impl.evaluation_batches_of(run, self.options)
