"""Correction of profiled step times for the overhead of recording.

Inflation is the ratio of recorded to measured step time. An overhead per event is subtracted. The
remaining overhead is kept out of the parts of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from accel_bench_profile.figures.modules import ModuleTimes, StepPart

DEAREST = 50e-6
"""Maximum overhead of an event in seconds: some microseconds for an operation of torch's profiler,
some 20 for a range of this plugin."""


UNEXPLAINED = StepPart()
"""Step part of time outside of modules and operations."""

Seconds: TypeAlias = Mapping[StepPart, float]
"""Seconds per unit of work, by part of a step."""


@dataclass(frozen=True)
class ProfiledRun:
    """One run of a stack: its measured window, and its ranks' profiles."""

    seconds: float
    """Seconds per unit of work in the measured window."""

    window_step_seconds: float
    """Mean seconds of a step in the measured window."""

    ranks: Sequence[ModuleTimes]

    plain_seconds: float | None = None
    """Median seconds of the steps before the recorded ones, averaged over ranks, or None."""

    preempted_seconds: float = 0.0
    """Seconds that other processes took from a recorded step, averaged over ranks."""

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a recorded step, averaged over ranks."""
        return fmean(rank.step_seconds for rank in self.ranks)

    @property
    def inflation(self) -> float:
        """Ratio of recorded to measured step time."""
        return self.step_seconds / self.window_step_seconds

    @property
    def events(self) -> float:
        """Number of recorded events per step, averaged over ranks."""
        return fmean(sum(part.events for part in rank.times) for rank in self.ranks)

    def recorded(self, event_seconds: float) -> dict[StepPart, float]:
        """Return the recorded seconds per unit of work by step part, without events' overhead.

        `event_seconds` is the overhead of one event. Other overhead remains: the sum of all parts
        exceeds the measured seconds.
        """
        steps = self.seconds / self.window_step_seconds / len(self.ranks)
        sums: dict[StepPart, float] = defaultdict(float)
        for rank in self.ranks:
            for part in rank.times:
                own = max(0.0, part.seconds - event_seconds * part.events)
                sums[StepPart(part.module, part.kind, part.direction)] += steps * own
        return sums


def event_seconds(runs: Iterable[ProfiledRun]) -> float:
    """Return the overhead of recording one event in seconds, fitted to runs by least squares."""
    points = [(r.events, r.step_seconds - (r.plain_seconds or r.window_step_seconds)) for r in runs]
    squares = sum(events**2 for events, _ in points)
    cost = sum(events * longer for events, longer in points) / squares if squares else 0.0
    return min(max(cost, 0.0), DEAREST)


def scaled(recorded: Seconds, seconds: float) -> dict[StepPart, float]:
    """Return the recorded seconds of parts, scaled to a total of `seconds`."""
    whole = sum(recorded.values())
    return {part: seconds * spent / whole for part, spent in recorded.items()}


def without_inflation(
    sides: tuple[Seconds, Seconds], inflations: tuple[float, float]
) -> tuple[Seconds, Seconds]:
    """Return the seconds of two stacks by part, without changes that only their scaling causes.

    `sides` are both stacks' seconds by part, scaled to the measured windows; `inflations` are their
    ratios of recorded to scaled seconds. The change of a part is computed from scaled seconds, and
    from recorded seconds divided by the smaller ratio. The smaller change is kept, or 0 if one is a
    rise and the other a fall. The rest of the change moves to the part `UNEXPLAINED`.
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
