"""Define what a benchmark reports: a number, its goal, all samples and the machine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field, computed_field

from accel_bench.analysis.statistics.estimators import log_interval
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.machine.info import read_machine

PRIVATE = {"host", "c_compiler"}
"""Fields of the machine that a published file leaves out."""


class Entry(Frozen):
    """Measured number with its goal and samples."""

    name: str
    """Name of the benchmark."""

    value: float
    """The number: a median over rounds, or the middle of its interval."""

    interval: tuple[float, float] | None = None
    """95 % t interval of the value over rounds; null where none is computed."""

    unit: str
    """`ratio`, or what the value counts."""

    goal: float | None
    """Figure to reach; null where the value is only reported."""

    goal_is: Literal["at most", "at least"]
    """On which side of the goal the value should lie."""

    right_verdicts: tuple[str, ...] = ()
    """Verdicts that reach the goal, where the goal is a verdict and not a number."""

    comparison: Comparison | None = None
    """accel-bench's own comparison of the two sides; null without one."""

    notes: tuple[str, ...] = ()
    """What disturbed the measurement, and what else must be known to read it."""

    samples: dict[str, tuple[float, ...]]
    """Every measurement in the order of rounds, by side; the name ends in the unit."""

    machine: dict[str, JsonValue]
    """Where it was measured, read just before."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; null without one, or without enough rounds for a verdict."""
        if self.comparison is not None and self.right_verdicts:
            verdict = self.comparison.verdict
            return None if verdict == "not tested" else verdict in self.right_verdicts
        if self.goal is None:
            return None
        return self.value <= self.goal if self.goal_is == "at most" else self.value >= self.goal


class Document(Frozen):
    """Output of `python -m benchmarks`."""

    schema_version: int = 2
    """Version of this document's form."""

    measured: str
    """When, in UTC, as ISO 8601."""

    commit: str
    """Commit of the checkout, with a hash of what differs from it; empty without git. Several, with
    commas, where pieces were measured at several."""

    quick: bool
    """True for runs that only show that the benchmarks work: such numbers mean nothing."""

    entries: tuple[Entry, ...]
    """The numbers."""

    failed: dict[str, str] = Field(default_factory=dict)
    """Benchmarks that broke, and the error of each."""

    @property
    def by_name(self) -> dict[str, Entry]:
        """The entries by name."""
        return {entry.name: entry for entry in self.entries}

    def with_entry(self, entry: Entry) -> Document:
        """Return the document with an entry, in the place of one of that name."""
        entries = {**self.by_name, entry.name: entry}
        return self.model_copy(update={"entries": tuple(entries.values())})


def read_document(path: Path) -> Document:
    """Read a document that was written. Raises ValueError for what is none."""
    found = json.loads(path.read_text(encoding="utf8"))
    for entry in found["entries"]:
        entry.pop("met", None)  # it is computed
    return Document.model_validate_json(json.dumps(found))


class Counts(Frozen):
    """Numbers of rounds and steps to measure."""

    rounds: int = Field(7, ge=1)
    """Rounds; each measures both sides once."""

    laps: int = Field(20_000, ge=1)
    """Steps of a window that do nothing."""

    windows: int = Field(31, ge=1)
    """Rounds of training: many short windows beat few long ones where load changes."""

    steps: int = Field(10, ge=1)
    """Steps of a window that train."""

    identical_pairs: int = Field(40, ge=1)
    """Pairs of identical stacks that are trained in each setting."""

    process_rounds: int = Field(5, ge=1)
    """Rounds of processes of their own; 5 are the fewest that a verdict rests on."""


QUICK = Counts(rounds=1, laps=50, windows=1, steps=2, identical_pairs=1, process_rounds=1)
"""Counts to check that everything works."""


@dataclass(frozen=True)
class Request:
    """What a benchmark is asked for."""

    counts: Counts
    device: str = "cpu"

    known: Mapping[str, Entry] = field(default_factory=dict)
    """Entries by name that are measured already: a benchmark of several goes on with the next."""


def this_machine() -> dict[str, JsonValue]:
    """Return the machine's current state, load included, without identifying fields."""
    machine = read_machine().model_dump(mode="json", exclude=PRIVATE)
    for gpu in machine["gpus"]:
        del gpu["uuid"]
    return machine


def interleave(
    sides: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, tuple[float, ...]]:
    """Measure all sides in every round, each round in the opposite order of the one before."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            samples[name].append(sides[name]())
    return {name: tuple(values) for name, values in samples.items()}


def ratio_of_pairs(over: Iterable[float], under: Iterable[float]) -> dict[str, Any]:
    """Return value, interval and unit of an entry: the geometric mean of pairs' ratios, with its
    95 % t interval."""
    ratio = log_interval([math.log(a / b) for a, b in zip(over, under, strict=True)])
    assert ratio is not None, "there is at least one round"
    ends = None if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    return {"value": ratio.median, "interval": ends, "unit": "ratio"}


def median_ratio(samples: Mapping[str, tuple[float, ...]], over: str, under: str) -> float:
    """Return the median over rounds of one side over the other, which cancels slow drift."""
    return median(a / b for a, b in zip(samples[over], samples[under], strict=True))
