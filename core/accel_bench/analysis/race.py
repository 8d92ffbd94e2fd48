"""Races: the entry point that drops stacks which are surely not the best, and records of drops.

A distribution provides the entry point `sequential` of the group `accel_bench.races`: a function of
the runs of a sweep point's stacks, the baseline's name and the number of rounds, which returns the
stacks to drop.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS, Comparison
from accel_bench.analysis.wording import count, duration, interval_text, join_names, ratio
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.plugins.doors import find_entry
from accel_bench.result import Status

GROUP = "accel_bench.races"
"""Group of the entry point for races."""

ENDS_A_STACK = frozenset(
    {Status.FAILED, Status.HUNG, Status.INVALID, Status.OOM, Status.PLUGIN_ERROR, Status.TIMEOUT}
)
"""Statuses after which a session does not run a stack again."""


class RaceDrop(Comparison):
    """A dropped stack, compared with a better stack in the rounds so far."""

    stack: str
    """Name of the dropped stack."""

    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of the swept keys."""

    rival: str
    """Name of the surely better stack."""

    quantity: Quantity = Field(default_factory=Quantity)
    """Compared quantity."""

    runs_saved: int = 0
    """Number of planned runs that the drop saved."""

    seconds_saved: float = 0.0
    """Estimated seconds of the saved runs, by the mean of the stack's runs."""

    @property
    def reason(self) -> str:
        """Reason for dropping the stack, in a sentence."""
        assert self.ratio is not None
        return (
            f"dropped by --race after {count(self.rounds, 'round')}: surely {self.words.worse} "
            f"than {self.rival}, {ratio(self.ratio.median)} {self.words.times} "
            f"({interval_text(self.ratio, ratio)}){self.quantity.by}"
        )


class RaceSummary(Frozen):
    """Dropped stacks of a race, and the runs saved."""

    looks: tuple[int, ...]
    """Numbers of rounds after which stacks could be dropped."""

    drops: tuple[RaceDrop, ...]
    """Dropped stacks, in order."""

    runs_planned: int
    """Number of planned runs of all stacks."""

    @property
    def text(self) -> str:
        """Savings of the race, in a sentence."""
        looks = join_names([str(size) for size in self.looks], most=10)
        if not self.drops:
            return f"race: no stack was surely not the best after {looks} rounds: nothing was saved"
        runs = sum(drop.runs_saved for drop in self.drops)
        seconds = sum(drop.seconds_saved for drop in self.drops)
        return (
            f"race: {count(len(self.drops), 'stack')} dropped, {runs} of {self.runs_planned} runs "
            f"and about {duration(seconds)} saved (looks after {looks} rounds; the best stack of a "
            "sweep point is dropped in at most 0.5 % of races)"
        )


def race_looks(rounds: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which stacks may be dropped: 5, 10, 20, ..."""
    return tuple(size for size in look_sizes(MINIMUM_ROUNDS, rounds) if size < rounds)


def race_point(rows: Sequence[ExperimentRuns], baseline: str, rounds: int) -> list[RaceDrop]:
    """Return the stacks of a sweep point to drop after the rounds so far.

    Raises PluginError if no installed distribution provides races.
    """
    entry = find_entry(GROUP, "race", "sequential")
    with entry.blamed():
        drops: list[RaceDrop] = entry.load()(rows, baseline, rounds)
        return drops
