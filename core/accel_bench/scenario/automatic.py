"""Sizes that a scenario leaves to the program: `auto`, and the number that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from accel_bench.documents.base import Frozen

AUTO = "auto"
"""The value of such a key in a file."""

LENGTH, MICRO_BATCH = "data.sequence_length", "train.micro_batch_size"
"""Keys that may have it."""

STAND_INS: Mapping[str, int] = {LENGTH: 512, MICRO_BATCH: 1}
"""What a plan takes until the size is worked out."""


class Choice(Frozen):
    """A size that was worked out."""

    key: str
    """Dotted key of the scenario."""

    value: int

    because: str
    """How it came about, in a sentence."""


Choices: TypeAlias = Mapping[str, Mapping[str, Choice]]
"""Sizes by sweep point, as `Experiment.point` names it, and key."""
