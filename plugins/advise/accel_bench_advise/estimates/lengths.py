"""Sample lengths of a file or a data plugin, and the context length chosen by them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt, TypeAdapter, ValidationError

from accel_bench.documents.files import read_text
from accel_bench.errors import ScenarioError
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.sweep import LENGTH
from accel_bench_advise.estimates.schema import LengthSummary

if TYPE_CHECKING:
    from accel_bench.worker.measurement import Rank

MAXIMUM_BYTES = 64 * 2**20
"""Maximum bytes of a file of lengths: some ten million samples."""

LENGTHS = TypeAdapter(list[PositiveInt])
"""Validator of sample lengths, which are read from a JSON list or from words."""

QUANTILE = 0.95
"""Fraction of samples that the chosen context length does not truncate."""

MULTIPLE = 8
"""Multiple to which the chosen length is rounded up, for efficient kernels."""


def sample_lengths(rank: Rank) -> list[int]:
    """Return the token count of every sample of the data; called in a worker process.

    Raises ScenarioError if the data plugin does not know its sample lengths.
    """
    lengths = rank.ask("sample_lengths")
    if lengths is None:
        use = rank.run.scenario.data.use
        raise ScenarioError(f"{use!r} does not say how long its samples are; give a number")
    return [int(length) for length in lengths]


def read_lengths(path: Path) -> list[int]:
    """Return the lengths in a file: a JSON list, or numbers between spaces, commas or lines.

    Raises ScenarioError for an unreadable file or a value that is no length in tokens.
    """
    text = read_text(path, MAXIMUM_BYTES, ScenarioError, "; take a sample of the lengths")
    try:
        if text.lstrip().startswith("["):
            lengths = LENGTHS.validate_json(text, strict=True)
        else:
            lengths = LENGTHS.validate_python([word for word in re.split(r"[\s,;]+", text) if word])
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["loc"]:
            what = f"{path}: {problem['input']!r} is no length of a sample in tokens"
            raise ScenarioError(f"{what}; write one a line, or a JSON list") from None
        raise ScenarioError(f"{path} is no JSON list of lengths: {problem['msg']}") from None
    if not lengths:
        raise ScenarioError(f"{path} holds no lengths; write one number of tokens a line")
    return lengths


def lengths_instead_of(
    path: Path, draft: Draft, overrides: Sequence[tuple[str, Any]]
) -> LengthSummary:
    """Return a summary of the sample lengths in a file, which choose the sequence length.

    Raises ScenarioError if the sequence length is also set: in the sweep of the scenario `draft`,
    or by `overrides`, pairs of a dotted key and a value.
    """
    for where, keys in (
        ("the scenario's sweep", draft.data.get("sweep") or {}),
        ("--set", dict(overrides)),
    ):
        if any(key in (LENGTH, f"sweep.{LENGTH}") for key in keys):
            raise ScenarioError(
                f"--lengths chooses {LENGTH}, which {where} gives too; leave one of the two out"
            )
    return summarize_lengths(read_lengths(path))


def summarize_lengths(lengths: Sequence[int]) -> LengthSummary:
    """Return a summary of sample lengths, with a sequence length chosen by the 95th percentile."""
    ordered = sorted(lengths)
    most = ordered[max(0, -int(-QUANTILE * len(ordered) // 1) - 1)]
    chosen = -(-most // MULTIPLE) * MULTIPLE
    kept = sum(min(length, chosen) for length in ordered)
    return LengthSummary(
        samples=len(ordered),
        tokens=sum(ordered),
        median=ordered[len(ordered) // 2],
        longest=ordered[-1],
        percentile_95=most,
        sequence_length=chosen,
        truncated_fraction=sum(length > chosen for length in ordered) / len(ordered),
        padding_fraction=1 - kept / (chosen * len(ordered)),
    )
