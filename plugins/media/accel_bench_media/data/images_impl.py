"""Datasets of generated images with classes, cached if they are drawn, and their batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import BatchPlan, Integers
from accel_bench.modeling.data.sample_batches import Collate, Step, batch_of
from accel_bench_media.data.images import ImageOptions, fitting_problems, label_problems

Pixels: TypeAlias = npt.NDArray[np.uint8]

CACHE_FORM = 1
"""Version of the cached files, which is a part of the cache key."""

PATTERN_SIZE = 8
"""Number of squares in each row and column of a pattern."""

NOISE = 0.5
"""Fraction of noise in a synthetic image."""

CHANNELS = 3
"""Number of color channels; all channels of a drawn image are equal."""


@dataclass(frozen=True)
class ImageDataset:
    """Dataset of images of several classes, which may be memory-mapped."""

    pixels: Pixels
    """Pixels of shape (samples, 1 or 3 channels, height, width)."""

    labels: Integers
    """Class index of each image, shape (samples,)."""

    fingerprint: str
    """Hexadecimal digest of the content."""

    names: tuple[str, ...] = ()
    """Name of each class, which serves as its caption."""

    vocab_size: int = 0
    """Number of token ids of the captions; 0 for images without captions."""

    def __len__(self) -> int:
        return len(self.labels)

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the dataset: samples, classes, image size and fingerprint."""
        return {
            "samples": len(self),
            "classes": len(set(self.labels.tolist())),
            "image_size": self.pixels.shape[-1],
            "fingerprint": self.fingerprint,
        }

    def values(self, samples: Integers, dtype: torch.dtype) -> torch.Tensor:
        """Return images with values from -1 to 1, of shape (samples, 3, height, width).

        `samples` are their indices.
        """
        images = torch.from_numpy(self.pixels[samples]).float() / 127.5 - 1
        return images.expand(-1, CHANNELS, -1, -1).to(dtype).contiguous()


def load(run: Run, options: ImageOptions) -> ImageDataset:
    """Return the dataset of images, which depends only on the options and the run's data seed."""
    labels = np.arange(options.samples, dtype=np.int64) % options.classes
    if options.source == "synthetic":
        seed = run.scenario.data.seed
        pixels = make_up(options, labels, seed)
        digest = hashlib.sha256(pixels.tobytes()).hexdigest()[:24]
        return ImageDataset(pixels, labels, digest, made_up_names(options.classes, seed))
    folder = drawn(run, options)
    kept = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
    return ImageDataset(kept, labels, folder.name, options.names())


def make_up(options: ImageOptions, labels: Integers, seed: int) -> Pixels:
    """Return images with the pattern of their class and noise, of shape (samples, 3, size, size).

    `labels` has the class of each image. A pattern is random squares of random colors: brightness
    or one color does not reveal it.
    """
    generator = np.random.default_rng(seed)
    squares = generator.random((options.classes, CHANNELS, PATTERN_SIZE, PATTERN_SIZE), np.float32)
    size = options.image_size
    place = np.arange(size) * PATTERN_SIZE // size
    patterns = squares[:, :, place[:, None], place[None, :]]
    made = np.empty((len(labels), CHANNELS, size, size), dtype=np.uint8)
    for image, label in zip(made, labels, strict=True):
        noise = generator.random((CHANNELS, size, size), np.float32)
        image[:] = 255 * ((1 - NOISE) * patterns[label] + NOISE * noise)
    return made


def made_up_names(classes: int, seed: int) -> tuple[str, ...]:
    """Return a name of eight random letters for each class."""
    letters = np.random.default_rng((seed, classes)).integers(97, 123, (classes, 8), np.uint8)
    return tuple(row.tobytes().decode() for row in letters)


def drawn(run: Run, options: ImageOptions) -> Path:
    """Return the cache folder of the drawn images, which are drawn if the cache lacks them.

    The folder has `pixels.npy`, of shape (samples, 1, size, size).
    """
    import PIL

    key: dict[str, Any] = {
        "form": CACHE_FORM,
        "options": options.model_dump(mode="json", exclude={"fonts"}),
        "fonts": options.fonts_digest(),
        "texts": list(options.texts()),
        "seed": run.scenario.data.seed,
        "pillow": PIL.__version__,
    }
    return run.cache("images", key, partial(_fill, options, run.scenario.data.seed))


def _fill(options: ImageOptions, seed: int, folder: Path) -> None:
    from accel_bench_media.data.drawing_impl import Drawing

    generator = np.random.default_rng(seed)
    texts, drawing = options.texts(), Drawing(options.image_size, options.font_paths())
    images = [
        drawing.draw(texts[number % len(texts)], generator) for number in range(options.samples)
    ]
    np.save(folder / "pixels.npy", np.stack(images)[:, None], allow_pickle=False)


def simulated_batch(run: Run, options: ImageOptions, images: int) -> Batch:
    """Return a micro-batch of black images of class 0; `images` is their number."""
    labels = torch.zeros(images, dtype=torch.long)
    tensors = {"pixel_values": black(run, options, (images,)), "labels": labels}
    return Batch(tensors, images, TokenCounts(images, images, images), images)


def black(run: Run, options: ImageOptions, shape: tuple[int, ...]) -> torch.Tensor:
    """Return black images of shape (*shape, channels, size, size) in the model's weight dtype."""
    size = options.image_size
    dtype = getattr(torch, run.scenario.model.dtype)
    return torch.zeros((*shape, CHANNELS, size, size), dtype=dtype)


def collate_of(run: Run, options: ImageOptions, plan: BatchPlan) -> Collate:
    """Return the function that makes batches of images and labels, in the model's weight dtype.

    Raises ScenarioError if the images do not fit the model.
    """
    config = getattr(run.unwrapped_model, "config", None)
    size, labels = (getattr(config, key, None) for key in ("image_size", "num_labels"))
    for problem in (*fitting_problems(options, size), *label_problems(options, labels)):
        raise ScenarioError(problem)
    return partial(_collate, run.dataset, plan, getattr(torch, run.scenario.model.dtype))


def _collate(
    dataset: ImageDataset, plan: BatchPlan, dtype: torch.dtype, samples: Integers, step: Step
) -> Batch:
    tensors = {
        "pixel_values": dataset.values(samples, dtype),
        "labels": torch.from_numpy(dataset.labels[samples]),
    }
    images = len(samples)
    return batch_of(tensors, plan, TokenCounts(images, images, images), len(step.samples))
