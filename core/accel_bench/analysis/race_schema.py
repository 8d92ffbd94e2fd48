"""What a race of stacks drops, and what that saves."""

from __future__ import annotations

from pydantic import Field

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import count, duration, interval_text, join_names, ratio
from accel_bench.documents.base import Frozen, JsonValue


class RaceDrop(Frozen):
    """A stack that ran no more rounds."""

    stack: str
    """Its name."""

    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of the swept keys."""

    after: int
    """Rounds that it ran."""

    rival: str
    """The stack that is surely faster."""

    ratio: Interval
    """Its speed over the rival's, with a 95 % interval over rounds."""

    runs_saved: int = 0
    """Runs that it was spared."""

    seconds_saved: float = 0.0
    """What they would have taken, each as long as its runs on average."""

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        return (
            f"dropped by --race after {count(self.after, 'round')}: surely slower than "
            f"{self.rival}, {ratio(self.ratio.median)} times as fast "
            f"({interval_text(self.ratio, ratio)})"
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
