"""The data plugin `captions`: pictures with a caption each, or with a question and its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from accel_bench import Experiment, hookimpl, model_config
from accel_bench_media.data.images import (
    ImageOptions,
    Pictures,
    drawing_problems,
    fitting_problems,
)


class CaptionOptions(ImageOptions):
    """Which pictures, and what is asked about them."""

    question: str = Field("What is this?", min_length=1, max_length=1_000)
    """What a model that generates text is asked about every image; it answers with the caption."""


class Captions(Pictures[CaptionOptions]):
    """Seeded images with their names as captions: patterns, characters or words.

    A token is a byte of the text, so that any vocabulary is large enough; `data.sequence_length` is
    the longest text.
    """

    Options = CaptionOptions
    tasks = frozenset({"image-text", "image-text-to-text"})

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Return why the images cannot be drawn, or do not fit the model."""
        yield from drawing_problems(self.options)
        config: dict[str, Any] = dict(model_config(experiment.scenario.model) or {})
        vision = config.get("vision_config")
        if isinstance(vision, dict):
            yield from fitting_problems(self.options, vision.get("image_size"))

    def _impl(self) -> Any:
        from accel_bench_media.data import captions_impl

        return captions_impl
