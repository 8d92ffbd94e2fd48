"""The data plugins `images` and `captions`: pictures with a class, a caption or a question."""

from __future__ import annotations

import hashlib
import string
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, model_validator

from accel_bench import Experiment, Options, Run, hookimpl, model_config
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.text_sources import home_path
from accel_bench_media.data.media_data import MediaData

if TYPE_CHECKING:
    from accel_bench_media.data.images_impl import ImageDataset

GLYPHS = string.digits + string.ascii_letters + string.punctuation
"""Characters that the source `glyphs` draws, one for each class."""

WORDS = tuple(sorted(name for name in sys.stdlib_module_names if name.isalpha()))
"""Words that the source `words` draws: module names of the standard library."""

NO_PILLOW = "drawing needs Pillow 10.1: pip install 'accel-bench[vision]'; or set data.source"


class ImageOptions(Options):
    """Options of `images`: the pictures and their classes."""

    source: Literal["synthetic", "glyphs", "words"] = "synthetic"
    """Source of the pictures. `synthetic`: a random pattern for each class, with noise; `glyphs`:
    characters, and `words`: module names, drawn in random sizes and positions."""

    image_size: int = Field(224, ge=8, le=4096)
    """Width and height in pixels; the model's size if its positions are learned."""

    classes: int = Field(10, ge=2, le=100_000)
    """Number of different patterns, characters or words; at most the model's number of labels."""

    samples: int = Field(512, ge=1, le=10_000_000)
    """Number of images in an epoch; classes take turns."""

    fonts: tuple[str, ...] = Field(("pillow",), min_length=1, strict=False)
    """Fonts for drawing: `pillow`, its own font; `matplotlib`, the DejaVu fonts included in it; or
    the path of a TrueType file."""

    @model_validator(mode="after")
    def _enough_texts(self) -> ImageOptions:
        known = {"glyphs": len(GLYPHS), "words": len(WORDS)}.get(self.source, self.classes)
        if self.classes > known:
            raise ValueError(f"{self.source} gives {known} classes at most, not {self.classes}")
        return self

    def texts(self) -> tuple[str, ...]:
        """Return the text drawn for each class; empty for the source `synthetic`."""
        source = {"glyphs": tuple(GLYPHS), "words": WORDS}.get(self.source, ())
        return source[: self.classes]

    def names(self) -> tuple[str, ...]:
        """Return the caption of each class; empty for the source `synthetic`.

        It is the character's name, such as `latin small letter a`, or the drawn word itself.
        """
        if self.source == "glyphs":
            return tuple(unicodedata.name(text).lower() for text in self.texts())
        return self.texts()

    def font_paths(self) -> list[str]:
        """Return the paths of all fonts; the path of Pillow's own font is empty.

        Raises ScenarioError if a font is missing.
        """
        return [path for font in self.fonts for path in _font_files(font)]

    def fonts_digest(self) -> str:
        """Return the hexadecimal SHA-256 of all fonts, with Pillow's version for its own font."""
        digest = hashlib.sha256()
        for path in self.font_paths():
            own = metadata.version("pillow").encode()
            digest.update(Path(path).read_bytes() if path else own)
        return digest.hexdigest()


ImageOptionsT = TypeVar("ImageOptionsT", bound=ImageOptions)


class Pictures(MediaData[ImageOptionsT]):
    """Base class of data plugins that generate images."""

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return a digest of the fonts, or None if nothing is drawn."""
        return None if self.options.source == "synthetic" else self.options.fonts_digest()

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Draw the images before the measurement, in a separate process."""
        from accel_bench_media.data import images_impl

        if self.options.source != "synthetic":
            images_impl.drawn(run, self.options)

    @hookimpl
    def load_data(self, run: Run) -> ImageDataset:
        """Return the dataset of images, made from `data.seed`, or drawn and mapped into memory."""
        from accel_bench_media.data import images_impl

        dataset = images_impl.load(run, self.options)
        run.on_evidence(dataset.evidence)
        return dataset


class Images(Pictures[ImageOptions]):
    """Seeded images of classes that a model can tell apart; nothing is augmented or downloaded."""

    Options = ImageOptions
    tasks = frozenset({"image-classification"})

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Yield reasons why the images cannot be drawn, or do not fit the model."""
        yield from drawing_problems(self.options)
        config = model_config(experiment.scenario.model) or {}
        yield from fitting_problems(self.options, config.get("image_size"))
        yield from label_problems(self.options, config.get("num_labels"))

    def _impl(self) -> Any:
        from accel_bench_media.data import images_impl

        return images_impl


def drawing_problems(options: ImageOptions) -> Iterator[str]:
    """Yield a reason if the images are drawn and Pillow is not installed."""
    if options.source != "synthetic" and find_spec("PIL") is None:
        yield f"data.source {options.source!r}: {NO_PILLOW} to synthetic"


def fitting_problems(options: ImageOptions, size: Any) -> Iterator[str]:
    """Yield a reason if the images' size is not the size that the model requires.

    `size` is the model's size in pixels; None if it takes any size.
    """
    if isinstance(size, int) and size != options.image_size:
        yield (
            f"data.image_size is {options.image_size}, but the model takes images of {size}: set "
            f"data.image_size: {size}, or model.overrides.image_size"
        )


def label_problems(options: ImageOptions, labels: Any) -> Iterator[str]:
    """Yield a reason if there are more classes than the model has labels.

    `labels` is the model's number of labels; None if unknown.
    """
    if isinstance(labels, int) and labels < options.classes:
        yield (
            f"data.classes is {options.classes}, but the model has {labels} labels: set "
            f"data.classes to {labels} or less, or model.overrides.num_labels"
        )


def _font_files(font: str) -> list[str]:
    if font == "pillow":
        return [""]
    if font != "matplotlib":
        path = home_path(font)
        if not path.is_file():
            raise ScenarioError(
                f"data.fonts: {font!r} is no file; name a .ttf file, `pillow` or `matplotlib`"
            )
        return [str(path)]
    package = find_spec("matplotlib")
    if package is None or package.origin is None:
        raise ScenarioError("data.fonts: matplotlib is not installed; use `pillow`")
    folder = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf"
    return [str(path) for path in sorted(folder.glob("DejaVuS*.ttf")) if "Display" not in path.name]


class CaptionOptions(ImageOptions):
    """Options of `captions`: the pictures, and the question about them."""

    question: str = Field("What is this?", min_length=1, max_length=1_000)
    """Question about every image for generating models; the answer is the caption."""


class Captions(Pictures[CaptionOptions]):
    """Seeded images with their names as captions: patterns, characters or words.

    A token is a byte of the text, which suits any vocabulary; `data.sequence_length` is the maximum
    length.
    """

    Options = CaptionOptions
    tasks = frozenset({"image-text", "image-text-to-text"})

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Yield reasons why the images cannot be drawn, or do not fit the model."""
        yield from drawing_problems(self.options)
        config: dict[str, Any] = dict(model_config(experiment.scenario.model) or {})
        vision = config.get("vision_config")
        if isinstance(vision, dict):
            yield from fitting_problems(self.options, vision.get("image_size"))

    def _impl(self) -> Any:
        from accel_bench_media.data import captions_impl

        return captions_impl
