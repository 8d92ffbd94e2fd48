"""JSON document of `accel-bench profile A --against B`: the difference of two stacks' time."""

from __future__ import annotations

from accel_bench.analysis.metrics.breakdown import TimeChange
from accel_bench.analysis.schema import Document
from accel_bench.documents.base import Frozen
from accel_bench_profile.figures.modules import StepKind

UNLIKE = 1.1
"""Ratio of the two inflations from which their effect is shown as unexplained."""


class KindChange(TimeChange):
    """Change of the time of one kind of operation."""

    kind: StepKind


class ModuleChange(TimeChange):
    """Change of the time of one module, inner modules included."""

    module: str
    """Path with `*` for the numbers of layers; `(outside of modules)` for the rest."""

    kinds: dict[StepKind, float]
    """Changes by kind of operation, the largest first."""

    directions: dict[str, float]
    """Changes by direction: forward, backward, recompute, optimizer, other."""

    mostly: str = ""
    """Inner module with most of the change; empty if it is spread."""


class Inflation(Frozen):
    """Ratio of profiled to measured step time, for each of two stacks."""

    a: float
    b: float

    @property
    def is_unlike(self) -> bool:
        """True if the ratios differ so much that unchanged modules would seem to change."""
        return max(self.a, self.b) > UNLIKE * min(self.a, self.b)


class ProfileWaterfall(Frozen):
    """Difference of the step time of two stacks A and B, by part."""

    scenario: str
    sweep: str = ""
    a: str
    """Name of the reference stack."""

    b: str
    """Name of the compared stack."""

    unit: str
    """Unit of work, such as a step, to which the seconds refer."""

    rounds: int
    """Number of rounds with measured and profiled runs of both stacks."""

    difference: TimeChange
    """Change of the whole step, from the unprofiled measured windows."""

    kinds: tuple[KindChange, ...]
    """Changes by kind of operation, which with `unexplained` add up to the difference."""

    modules: tuple[ModuleChange, ...]
    """Changes by module, the largest first, which with `unexplained` add up to the difference."""

    unexplained: TimeChange
    """Change outside of modules and operations, and if `left_inflation` differs by more than 10 %,
    the changes that this alone would cause in modules."""

    explained: float | None
    """Fraction of the difference that the parts explain; null without a difference."""

    gained: tuple[str, ...] = ()
    """Modules with less time in B, the largest change first."""

    lost: tuple[str, ...] = ()
    """Modules with more time in B, the largest change first."""

    inflation: Inflation
    """Ratios of profiled to measured steps."""

    event_seconds: float
    """Overhead of recording an event in seconds, subtracted for each event of a part."""

    left_inflation: Inflation
    """Ratios of profiled to measured steps after subtracting the overhead of events; parts are
    scaled by them."""

    notes: tuple[str, ...] = ()
    """Limitations of the comparison."""

    folders: tuple[str, ...] = ()
    """Folders of the profiled runs, each with its traces."""


class WaterfallReport(Document):
    """The JSON document of `accel-bench profile --against`: a waterfall for each sweep point."""

    waterfalls: tuple[ProfileWaterfall, ...] = ()

    missing: tuple[str, ...] = ()
    """Reasons for sweep points without a waterfall."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if every sweep point has a waterfall, else 1."""
        return int(bool(self.missing) or not self.waterfalls)
