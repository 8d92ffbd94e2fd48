"""Difference of the step time of two stacks, by module and kind of operation.

The seconds of the measured windows are divided in the proportions of the profiled steps, without
recording overhead. Rounds that both stacks measured are paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from accel_bench.analysis.metrics.breakdown import TimeChange
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench_profile.figures.inflation import (
    UNEXPLAINED,
    ProfiledRun,
    Seconds,
    event_seconds,
    scaled,
    without_inflation,
)
from accel_bench_profile.figures.kernel_kinds import STEP_KINDS
from accel_bench_profile.figures.modules import DATA, OUTSIDE, ROOT, StepPart
from accel_bench_profile.figures.waterfall_schema import (
    Inflation,
    KindChange,
    ModuleChange,
    ProfileWaterfall,
)

ADDS_UP = 0.05
"""Fraction of the difference that may be unexplained without a note."""

WORTH_NAMING = 0.01
"""Change of a module, relative to A's step, from which it is named."""

LESS = 0.97
"""Ratio of recorded to measured seconds below which a note suspects other processes."""

PREEMPTED = 0.02
"""Fraction of recorded steps that other processes may take without a note."""

MOSTLY = 0.6
"""Fraction of a module's change from which one inner module is named."""


@dataclass(frozen=True)
class ProfiledStack:
    """Profiled runs of one stack."""

    name: str
    runs: Mapping[RoundKey, ProfiledRun]

    @property
    def compiled(self) -> frozenset[str]:
        """Paths of the modules that the stack compiles as a whole."""
        ranks = (rank for run in self.runs.values() for rank in run.ranks)
        return frozenset(module for rank in ranks for module in rank.compiled)


def profile_waterfall(
    a: ProfiledStack, b: ProfiledStack, scenario: str, unit: str, sweep: str = ""
) -> ProfileWaterfall | None:
    """Return the difference of two stacks' step time by part, or None if they have no common round.

    `scenario` and `sweep` name scenario and sweep point. `unit` is the unit of work to which the
    seconds of runs refer.
    """
    rounds = sorted(set(a.runs) & set(b.runs))
    if not rounds:
        return None
    runs = [(a.runs[key], b.runs[key]) for key in rounds]
    cost = event_seconds(run for pair in runs for run in pair)
    recorded = _Pairs([(run_a.recorded(cost), run_b.recorded(cost)) for run_a, run_b in runs])
    left = _left(recorded, runs)
    pairs = _in_windows(recorded, runs, left)
    whole = a.compiled | b.compiled
    difference = TimeChange.over(*((a.runs[key].seconds, b.runs[key].seconds) for key in rounds))
    modules = _modules(pairs, whole)
    also = {change.module: change for change in _modules(recorded, whole)}
    unexplained = pairs.change(_is_unexplained)
    named = [
        module for module in modules if all(
            _is_worth_naming(change, difference.a) and change.change * module.change > 0
            for change in (module, also[module.module])
        )
    ]  # fmt: skip
    return ProfileWaterfall(
        scenario=scenario,
        sweep=sweep,
        a=a.name,
        b=b.name,
        unit=unit,
        rounds=len(rounds),
        difference=difference,
        kinds=tuple(_kinds(pairs)),
        modules=tuple(modules),
        unexplained=unexplained,
        explained=1 - abs(unexplained.change / difference.change) if difference.change else None,
        gained=tuple(module.module for module in named if module.change < 0),
        lost=tuple(module.module for module in named if module.change > 0),
        inflation=Inflation(a=_inflation(a, rounds), b=_inflation(b, rounds)),
        left_inflation=left,
        event_seconds=cost,
        notes=tuple(_notes(a, b, rounds, left)),
    )


def _in_windows(
    recorded: _Pairs, runs: Sequence[tuple[ProfiledRun, ProfiledRun]], left: Inflation
) -> _Pairs:
    """Return the seconds of each step part, scaled to add up to the measured window.

    Each run is scaled on its own. `left` are both stacks' ratios of recorded to measured time
    without the overhead of events. If the ratios are unlike, changes that the scaling alone causes
    move to the unexplained part.
    """
    rounds = []
    for (a, b), (run_a, run_b) in zip(recorded.rounds, runs, strict=True):
        sides: tuple[Seconds, Seconds] = scaled(a, run_a.seconds), scaled(b, run_b.seconds)
        if left.is_unlike:
            times = sum(a.values()) / run_a.seconds, sum(b.values()) / run_b.seconds
            sides = without_inflation(sides, times)
        rounds.append(sides)
    return _Pairs(rounds)


def _left(recorded: _Pairs, runs: Sequence[tuple[ProfiledRun, ProfiledRun]]) -> Inflation:
    """Return both stacks' ratios of recorded to measured time, without the overhead of events."""
    a, b = (
        fmean(sum(pair[side].values()) / run[side].seconds
              for pair, run in zip(recorded.rounds, runs, strict=True))
        for side in (0, 1)
    )  # fmt: skip
    return Inflation(a=a, b=b)


def _is_worth_naming(change: TimeChange, step: float) -> bool:
    return abs(change.change) >= WORTH_NAMING * step and change.is_sure


class _Pairs:
    """Seconds of the step parts of both stacks, paired by round."""

    def __init__(self, rounds: Sequence[tuple[Seconds, Seconds]]) -> None:
        self.rounds = rounds
        self.parts = sorted({part for pair in rounds for side in pair for part in side})

    def change(self, chosen: Callable[[StepPart], bool]) -> TimeChange:
        """Return the seconds in A and B of all parts for which `chosen` is true, and the change."""
        sums = (
            [sum(spent for part, spent in side.items() if chosen(part)) for side in pair]
            for pair in self.rounds
        )
        return TimeChange.over(*((a, b) for a, b in sums))

    def changes(self, chosen: Callable[[StepPart], str]) -> dict[str, float]:
        """Return the mean changes of parts, summed by the name `chosen(part)`, the largest first.

        Parts with an empty name are left out.
        """
        sums: dict[str, float] = defaultdict(float)
        for a, b in self.rounds:
            for part in self.parts:
                sums[chosen(part)] += (b.get(part, 0.0) - a.get(part, 0.0)) / len(self.rounds)
        return {name: sums[name] for name in sorted(sums, key=lambda n: -abs(sums[n])) if name}


def _kinds(pairs: _Pairs) -> Iterable[KindChange]:
    """Yield the change of each kind of operation that takes any time, in display order."""
    for kind in STEP_KINDS:
        change = pairs.change(lambda part: part.kind == kind and not _is_unexplained(part))  # noqa: B023
        if change.a or change.b:
            yield KindChange(kind=kind, **dict(change))


def _modules(pairs: _Pairs, whole: Iterable[str]) -> list[ModuleChange]:
    """Return the change of each module that takes any time, the largest first.

    `whole` are the paths of modules that a stack compiles as a whole.
    """
    explained = [part for part in pairs.parts if not _is_unexplained(part)]
    names = {module_group(part.module, whole) for part in explained}
    changes = (_module(pairs, name, whole) for name in names)
    return sorted(changes, key=lambda change: (-abs(change.change), change.module))


def _module(pairs: _Pairs, name: str, whole: Iterable[str]) -> ModuleChange:
    def within(part: StepPart) -> bool:
        return module_group(part.module, whole) == name and not _is_unexplained(part)

    change = pairs.change(within)
    inside = pairs.changes(lambda part: part.module if within(part) else "")
    most = next(iter(inside), name)
    same_way = inside.get(most, 0.0) * change.change > 0
    mostly = same_way and abs(inside[most]) >= MOSTLY * abs(change.change)
    kinds = pairs.changes(lambda part: part.kind if within(part) else "")
    directions = pairs.changes(lambda part: part.direction if within(part) else "")
    return ModuleChange(
        module=name,
        kinds={kind: kinds[kind] for kind in kinds},  # type: ignore[misc]
        directions=directions,
        mostly=most if mostly and most != name else "",
        **dict(change),
    )


def module_group(path: str, whole: Iterable[str]) -> str:
    """Return the module under which a path is shown: a part of a layer, or a compiled module.

    `whole` are the paths of modules that either stack compiled as a whole, whose inner modules
    cannot be compared.
    """
    for compiled in sorted(whole, key=len):
        if compiled == ROOT and path not in (DATA, OUTSIDE):
            return ROOT
        if path == compiled or path.startswith(f"{compiled}."):
            return compiled
    parts = path.split(".")
    depth = parts.index("*") + 2 if "*" in parts else 3
    return ".".join(parts[:depth])


def _is_unexplained(part: StepPart) -> bool:
    return part[:2] == UNEXPLAINED[:2]


def _inflation(stack: ProfiledStack, rounds: Sequence[RoundKey]) -> float:
    return fmean(stack.runs[key].inflation for key in rounds)


def _notes(
    a: ProfiledStack, b: ProfiledStack, rounds: Sequence[RoundKey], left: Inflation
) -> Iterable[str]:
    """Yield a sentence on each limitation of the comparison."""
    for stack in (a, b):
        if stack.compiled:
            listed = ", ".join(sorted(stack.compiled))
            yield f"{stack.name} compiles {listed} as one: no module is seen inside, in either"
    for stack in (a, b):
        yield from _disturbed(stack, rounds)
    if left.is_unlike:
        yield (
            f"without that, recorded steps of {a.name} still take {left.a:.2f} times and those of "
            f"{b.name} {left.b:.2f} times as long as measured ones: what parts change by in only "
            "one of recorded and scaled seconds is unexplained"
        )


def _disturbed(stack: ProfiledStack, rounds: Sequence[RoundKey]) -> Iterable[str]:
    """Yield a sentence if other processes disturbed a stack's measured or recorded steps."""
    inflation = _inflation(stack, rounds)
    preempted = fmean(stack.runs[key].preempted_seconds for key in rounds)
    if inflation < LESS:
        yield (
            f"recorded steps of {stack.name} took {inflation:.2f} times as long as measured ones: "
            "other work on the machine slowed its measured windows"
        )
    if preempted > PREEMPTED * fmean(stack.runs[key].step_seconds for key in rounds):
        yield (
            f"other work on the machine took {1000 * preempted:.2f} ms of each recorded step of "
            f"{stack.name}"
        )
