"""What recording adds to steps: taken off by event, and what is left of it kept out of the bars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeAlias

from accel_bench_profile.figures.modules import OUTSIDE, Direction, ModuleTimes, StepKind

DEAREST = 50e-6
"""Seconds that torch's profiler spends on no event: it takes some microseconds for an operation,
and some 20 for a range of ours."""


class Part(NamedTuple):
    """What a time belongs to."""

    module: str
    kind: StepKind
    direction: Direction


UNEXPLAINED = Part(OUTSIDE, "idle", "other")
"""What lies in no module and in no operation."""

Seconds: TypeAlias = Mapping[Part, float]
"""Seconds of the unit by part."""


@dataclass(frozen=True)
class ProfiledRun:
    """One run of a stack: its measured window, and its ranks' profiles."""

    seconds: float
    """Seconds of the unit in the measured window."""

    window_step_seconds: float
    """Mean step of that window."""

    ranks: Sequence[ModuleTimes]

    plain_seconds: float | None = None
    """Median of the steps just before the recorded ones, mean of the ranks; None without any."""

    taken_seconds: float = 0.0
    """Seconds that other work on the machine took of a recorded step, mean of the ranks."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a recorded step."""
        return fmean(rank.step_seconds for rank in self.ranks)

    @property
    def inflation(self) -> float:
        """How much longer the recorded steps took."""
        return self.step_seconds / self.window_step_seconds

    @property
    def events(self) -> float:
        """Recorded events of a step."""
        return fmean(sum(one.events for one in rank.times) for rank in self.ranks)

    def recorded(self, event_seconds: float) -> dict[Part, float]:
        """Return the seconds of the unit by part as recorded, less those for recording events.

        They add up to more than the unit's as far as recorded steps still take longer.
        """
        steps = self.seconds / self.window_step_seconds / len(self.ranks)
        sums: dict[Part, float] = defaultdict(float)
        for rank in self.ranks:
            for one in rank.times:
                own = max(0.0, one.seconds - event_seconds * one.events)
                sums[Part(one.module, one.kind, one.direction)] += steps * own
        return sums


def event_seconds(runs: Iterable[ProfiledRun]) -> float:
    """Return what recording an event costs: the same for all runs, by least squares."""
    found = [(r.events, r.step_seconds - (r.plain_seconds or r.window_step_seconds)) for r in runs]
    squares = sum(events**2 for events, _ in found)
    cost = sum(events * longer for events, longer in found) / squares if squares else 0.0
    return min(max(cost, 0.0), DEAREST)


def scaled(recorded: Seconds, seconds: float) -> dict[Part, float]:
    """Return the parts of these seconds, in the proportions of the recorded ones."""
    whole = sum(recorded.values())
    return {part: seconds * spent / whole for part, spent in recorded.items()}


def without_inflation(
    sides: tuple[Seconds, Seconds], inflations: tuple[float, float]
) -> tuple[Seconds, Seconds]:
    """Move to the unexplained what parts change by only since one side is scaled down more.

    A part keeps the change that both its scaled and its recorded seconds have; these are in the
    scale of the side that recording made less longer.
    """
    a, b = dict(sides[0]), dict(sides[1])
    for part in sorted({*a, *b} - {UNEXPLAINED}):
        before, after = a.get(part, 0.0), b.get(part, 0.0)
        change = after - before
        recorded = (after * inflations[1] - before * inflations[0]) / min(inflations)
        kept = min(change, recorded, key=abs) if change * recorded > 0 else 0.0
        larger = b if change > kept else a
        larger[part] = larger.get(part, 0.0) - abs(change - kept)
        larger[UNEXPLAINED] = larger.get(UNEXPLAINED, 0.0) + abs(change - kept)
    return a, b
