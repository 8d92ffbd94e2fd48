"""Turn the laps of optimizer steps into the samples that are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from accel_bench.engine import Batch, TokenCounts
from accel_bench.result import Sample

Lap: TypeAlias = tuple[list[tuple[int, TokenCounts]], Any]
"""The counts of a step's micro-batches, and its loss, which may still be on the device."""


def counted(batches: Sequence[Batch]) -> list[tuple[int, TokenCounts]]:
    """Keep the counts of the micro-batches and let their tensors go."""
    return [(batch.sequences, batch.tokens) for batch in batches]


def sample_of(
    step: int,
    host_seconds: float,
    device_seconds: float | None,
    counts: list[tuple[int, TokenCounts]],
    loss: Any,
) -> Sample:
    """Return the sum of a step's micro-batches, with its loss."""
    value = float(loss)
    return Sample(
        step=step,
        seconds=host_seconds if device_seconds is None else device_seconds,
        device_seconds=device_seconds,
        sequences=sum(sequences for sequences, _ in counts),
        processed_tokens=sum(tokens.processed for _, tokens in counts),
        real_tokens=sum(tokens.real for _, tokens in counts),
        supervised_tokens=sum(tokens.supervised for _, tokens in counts),
        real_pairs=_sum_of_known([tokens.real_pairs for _, tokens in counts]),
        processed_pairs=_sum_of_known([tokens.processed_pairs for _, tokens in counts]),
        loss=value if math.isfinite(value) else None,
    )


def samples_of(
    first: int, seconds: tuple[list[float], list[float] | None], laps: Sequence[Lap]
) -> list[Sample]:
    """Return the samples of laps, numbered from `first`; `seconds` are those of host and device."""
    host, device = seconds
    return [
        sample_of(first + i, host[i], None if device is None else device[i], *lap)
        for i, lap in enumerate(laps)
    ]


def _sum_of_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
