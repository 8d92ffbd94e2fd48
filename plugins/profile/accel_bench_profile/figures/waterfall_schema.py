"""Document of `accel-bench profile A --against B`: the difference of two stacks' time, by part."""

from __future__ import annotations

from accel_bench.analysis.metrics.breakdown import TimeChange
from accel_bench.analysis.schema import Document
from accel_bench.documents.base import Frozen
from accel_bench_profile.figures.modules import StepKind

UNLIKE = 1.1
"""Ratio of the two inflations from which what they induce is shown as unexplained."""


class KindChange(TimeChange):
    """One kind of operation."""

    kind: StepKind


class ModuleChange(TimeChange):
    """One module, with those inside it."""

    module: str
    """Path with `*` for the numbers of layers; `(outside of modules)` for what runs in none."""

    kinds: dict[StepKind, float]
    """The change by kind of operation, the largest first."""

    directions: dict[str, float]
    """The change by direction: forward, backward, recompute, optimizer, other."""

    mostly: str = ""
    """The module inside it that most of the change is in; empty where it spreads."""


class Inflation(Frozen):
    """How much longer a step of a stack takes while it is profiled: a factor."""

    a: float
    b: float

    @property
    def is_unlike(self) -> bool:
        """True if the factors differ by so much that modules seem to change that do not."""
        return max(self.a, self.b) > UNLIKE * min(self.a, self.b)


class ProfileWaterfall(Frozen):
    """The way from A's step to B's."""

    scenario: str
    sweep: str = ""
    a: str
    """Stack that is compared with."""

    b: str
    """Stack that is compared."""

    unit: str
    """What the seconds are for."""

    rounds: int
    """Rounds in which both were measured and profiled."""

    difference: TimeChange
    """The measured windows, which nothing profiled; seconds of the unit, as all changes."""

    kinds: tuple[KindChange, ...]
    """By kind of operation, with `unexplained` all of the difference."""

    modules: tuple[ModuleChange, ...]
    """By module, with `unexplained` all of the difference; the largest change first."""

    unexplained: TimeChange
    """What lies in no module and in no operation, and where `left_inflation` differs by more than
    10 % what only that makes modules change by."""

    explained: float | None
    """Share of the difference that the parts explain; null where there is no difference."""

    gained: tuple[str, ...] = ()
    """Modules that take less time in B, the largest change first."""

    lost: tuple[str, ...] = ()
    """Modules that take more time in B, the largest change first."""

    inflation: Inflation
    """How much longer the profiled steps were."""

    event_seconds: float
    """What recording an event costs; it is taken off for each event of a part."""

    left_inflation: Inflation
    """How much longer the profiled steps are without that; the parts are in their proportions."""

    notes: tuple[str, ...] = ()
    """What limits the answer."""

    folders: tuple[str, ...] = ()
    """Folders of the profiled runs, each with its traces."""


class WaterfallReport(Document):
    """What `accel-bench profile --against` prints: a waterfall for each sweep point."""

    waterfalls: tuple[ProfileWaterfall, ...] = ()

    missing: tuple[str, ...] = ()
    """Why there is none, for points that have none."""

    @property
    def exit_code(self) -> int:
        """0 where every sweep point has a waterfall, else 1."""
        return int(bool(self.missing) or not self.waterfalls)
