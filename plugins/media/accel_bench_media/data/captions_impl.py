"""Batches of images with texts, where each byte of a text is a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import BatchPlan, Integers
from accel_bench.modeling.data.sample_batches import Collate, Step, batch_of
from accel_bench.modeling.data.token_batches import IGNORED_LABEL
from accel_bench_media.data.images import CaptionOptions, fitting_problems
from accel_bench_media.data.images_impl import ImageDataset, black, made_up_names

BYTES = 256
"""Number of token ids for bytes of text; special tokens have larger ids."""


@dataclass(frozen=True)
class CaptionCollator:
    """Collator of images with the text of their class; all rows of text are equally long."""

    dataset: ImageDataset
    plan: BatchPlan

    ids: Integers
    """Token ids of each class's text, shape (classes, length)."""

    labels: Integers
    """Token ids of supervised tokens, and -100 for other tokens, shape (classes, length)."""

    mask: Integers
    """Mask with 1 for real tokens and 0 for padding, shape (classes, length)."""

    dtype: torch.dtype
    """Dtype of the model's weights."""

    def pairs(self, samples: Integers, step: Step) -> Batch:
        """Return images with their captions as a batch; each pair counts as supervised once.

        `samples` are indices in the dataset, and `step` is the optimizer step that contains them.
        """
        chosen = self.dataset.labels[samples]
        tensors = {
            "pixel_values": self.dataset.values(samples, self.dtype),
            "input_ids": torch.from_numpy(self.ids[chosen]),
            "attention_mask": torch.from_numpy(self.mask[chosen]),
        }
        pairs = len(samples)
        return batch_of(tensors, self.plan, TokenCounts(pairs, pairs, pairs), len(step.samples))

    def answers(self, samples: Integers, step: Step) -> Batch:
        """Return a batch of rows with an image, a question, and the supervised answer to it.

        `samples` are indices in the dataset, and `step` is the optimizer step that contains them.
        """
        chosen = self.dataset.labels[samples]
        mask = self.mask[chosen]
        tensors = {
            "pixel_values": self.dataset.values(samples, self.dtype)[:, None],
            "input_ids": torch.from_numpy(self.ids[chosen]),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(self.labels[chosen]),
        }
        lengths, width = mask.sum(1), mask.shape[1]
        supervised = (self.labels != IGNORED_LABEL).sum(1)
        counts = TokenCounts(
            processed=mask.size,
            real=int(lengths.sum()),
            supervised=int(supervised[chosen].sum()),
            real_pairs=int((lengths * lengths).sum()),
            processed_pairs=mask.size * width,
        )
        in_step = int(supervised[self.dataset.labels[step.samples]].sum())
        return batch_of(tensors, self.plan, counts, in_step)


def simulated_batch(run: Run, options: CaptionOptions, images: int) -> Batch:
    """Return a micro-batch of black images with texts of the maximum length, all of token id 0.

    `images` is the number of images.
    """
    names = options.names() or made_up_names(options.classes, run.scenario.data.seed)
    ids, labels, _ = _texts(run, options, names)
    width, asked = ids.shape[1], _asks(run)
    shape = (images, 1) if asked else (images,)
    texts = ("input_ids", "attention_mask", *(["labels"] if asked else []))
    tensors = {name: torch.zeros((images, width), dtype=torch.long) for name in texts}
    tensors["pixel_values"] = black(run, options, shape)
    processed = images * width if asked else images
    tokens = int((labels != IGNORED_LABEL).sum(1).max()) if asked else 1
    supervised = images * tokens
    return Batch(tensors, images, TokenCounts(processed, processed, supervised), supervised)


def collate_of(run: Run, options: CaptionOptions, plan: BatchPlan) -> Collate:
    """Return the function that makes batches for the run's task.

    Raises ScenarioError if the data do not fit the model.
    """
    texts = _texts(run, options, run.dataset.names)
    dtype = getattr(torch, run.scenario.model.dtype)
    collator = CaptionCollator(run.dataset, plan, *texts, dtype)
    return collator.answers if _asks(run) else collator.pairs


def _asks(run: Run) -> bool:
    """Return whether the run's task asks a question about each image."""
    return run.scenario.task.use == "image-text-to-text"


def _texts(
    run: Run, options: CaptionOptions, names: Sequence[str]
) -> tuple[Integers, Integers, Integers]:
    """Return token ids, labels and masks of the classes' texts, each of shape (classes, length).

    `names` are the captions of the classes. Raises ScenarioError if a text does not fit the model.
    """
    config = run.unwrapped_model.config
    text, vision = config.get_text_config(), config.vision_config
    for problem in fitting_problems(options, vision.image_size):
        raise ScenarioError(problem)
    special = special_tokens(text, run.scenario.model.id)
    before = [special.beginning]
    if _asks(run):
        before += [config.image_token_id] * image_tokens(config) + list(options.question.encode())
    rows = [(before, [*name.encode(), special.end]) for name in names]
    return texts_of(rows, special.padding, run.scenario.data.sequence_length)


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids of a model for the beginning, end and padding of a text."""

    beginning: int
    end: int
    padding: int


def special_tokens(text: Any, name: str) -> SpecialTokens:
    """Return the special token ids of a model called `name`, by its text configuration.

    Raises ScenarioError if its vocabulary is too small for bytes.
    """
    if text.vocab_size <= BYTES:
        raise ScenarioError(
            f"the model {name!r} has a vocabulary of {text.vocab_size}, and a byte of text takes "
            f"one of {BYTES} tokens: set model.overrides.text_config.vocab_size to a larger number"
        )
    end = int(text.eos_token_id)
    known = (text.bos_token_id, text.pad_token_id)
    beginning, padding = (end if token is None else int(token) for token in known)
    return SpecialTokens(beginning, end, padding)


def image_tokens(config: Any) -> int:
    """Return the number of tokens of an image: its patches, some of which the model may merge."""
    vision = config.vision_config
    patches: int = (vision.image_size // vision.patch_size) ** 2
    return patches // getattr(config, "scale_factor", 1) ** 2


def texts_of(
    rows: list[tuple[list[int], list[int]]], padding: int, longest: int
) -> tuple[Integers, Integers, Integers]:
    """Return token ids, labels and masks of `rows`, each of shape (rows, length of the longest).

    A row has an unsupervised and a supervised part. Rows are padded with the token id `padding`.
    Raises ScenarioError if a row is longer than `longest`.
    """
    width = max(len(before) + len(after) for before, after in rows)
    if width > longest:
        raise ScenarioError(
            f"a text has {width} tokens, those of the image among them, and data.sequence_length "
            f"is {longest}: set data.sequence_length to {width} or more"
        )
    shape = (len(rows), width)
    ids = np.full(shape, padding, dtype=np.int64)
    labels = np.full(shape, IGNORED_LABEL, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    for row, (before, after) in enumerate(rows):
        end = len(before) + len(after)
        ids[row, :end] = [*before, *after]
        labels[row, len(before) : end] = after
        mask[row, :end] = 1
    return ids, labels, mask
