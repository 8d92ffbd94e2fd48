"""What to use for the models of a family, on each device, for training and for inference."""

from __future__ import annotations

from typing import Literal

from accel_bench.analysis.schema import Document
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench_advise.recommendation.schema import Certainty, Considered


class FamilyRow(Frozen):
    """What is recommended for one model on one device, to train it or to answer requests."""

    model: str
    mode: Literal["train", "inference"]
    device: str
    certainty: Certainty
    """`measured`, `open` where it is not surely better than the runner-up, or `cannot tell`."""

    fastest: bool = False
    """True if no other device with stored runs of the model is faster in this mode."""

    recommended: Considered | None = None
    """The stored stack; null where nothing stored may be recommended."""

    runner_up: str = ""
    settings: dict[str, JsonValue]
    """Settings of what ran, which the recommendation leaves as they are."""

    why: str = ""
    """Why nothing is recommended."""


class FamilyRecommendation(Document):
    """What `accel-bench recommend --family FAMILY --format json` prints."""

    family: str
    gpu: str | None
    answer: str
    rows: tuple[FamilyRow, ...] = ()
    """By model, the largest first, then by mode, then by device, the fastest first."""

    not_stored: tuple[str, ...] = ()
    """Models of the family of which no run is stored, the largest first."""

    left_out: tuple[str, ...] = ()
    """Stored rows that are no evidence here, and why."""
