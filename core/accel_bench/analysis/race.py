"""The door for a race, which drops stacks that are surely not the best; their record.

A distribution brings it by the entry point `sequential` of the group `accel_bench.races`: a
function of the runs of a sweep point's stacks, the baseline's name and the number of rounds, which
returns those that are dropped by the runs so far.
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
"""Group of the entry point."""

ENDS_A_STACK = frozenset(
    {Status.FAILED, Status.HUNG, Status.INVALID, Status.OOM, Status.PLUGIN_ERROR, Status.TIMEOUT}
)
"""Statuses after which a stack is not run again in its session: it would likely fail again."""


class RaceDrop(Comparison):
    """A stack that ran no more rounds, compared with its rival in the rounds that decided."""

    stack: str
    """Its name."""

    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of the swept keys."""

    rival: str
    """The stack that is surely better."""

    quantity: Quantity = Field(default_factory=Quantity)
    """Compared quantity."""

    runs_saved: int = 0
    """Runs that it was spared."""

    seconds_saved: float = 0.0
    """What they would have taken, each as long as its runs on average."""

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        assert self.ratio is not None
        return (
            f"dropped by --race after {count(self.rounds, 'round')}: surely {self.words.worse} "
            f"than {self.rival}, {ratio(self.ratio.median)} {self.words.times} "
            f"({interval_text(self.ratio, ratio)}){self.quantity.by}"
        )


class RaceSummary(Frozen):
    """What a race has saved."""

    looks: tuple[int, ...]
    """Rounds after which stacks could be dropped."""

    drops: tuple[RaceDrop, ...]
    """Stacks that were, in order."""

    runs_planned: int
    """Runs of all stacks in all rounds."""

    @property
    def text(self) -> str:
        """What was saved, in a sentence."""
        looks = join_names([str(size) for size in self.looks], most=10)
        if not self.drops:
            return f"race: no stack was surely not the best after {looks} rounds: nothing was saved"
        runs = sum(one.runs_saved for one in self.drops)
        seconds = sum(one.seconds_saved for one in self.drops)
        return (
            f"race: {count(len(self.drops), 'stack')} dropped, {runs} of {self.runs_planned} runs "
            f"and about {duration(seconds)} saved (looks after {looks} rounds; the best stack of a "
            "sweep point is dropped in at most 0.5 % of races)"
        )


def race_looks(rounds: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which stacks may be dropped: 5, 10, 20, ..."""
    return tuple(size for size in look_sizes(MINIMUM_ROUNDS, rounds) if size < rounds)


def race_point(rows: Sequence[ExperimentRuns], baseline: str, rounds: int) -> list[RaceDrop]:
    """Return the stacks of a sweep point that are dropped, by the runs so far.

    Raises PluginError if nothing that is installed races.
    """
    entry = find_entry(GROUP, "race", "sequential")
    with entry.blamed():
        drops: list[RaceDrop] = entry.load()(rows, baseline, rounds)
        return drops
