"""From the step of one stack to that of another, by module and kind of operation.

The seconds are those of the measured windows; their parts are in the proportions of the profiled
steps, which take longer. Rounds in which both were measured are pairs, as everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from accel_bench.analysis.profiles.modules import OUTSIDE, ROOT, Direction, ModuleTimes, StepKind
from accel_bench.analysis.profiles.step_kinds import STEP_KINDS
from accel_bench.analysis.profiles.waterfall_schema import (
    Change,
    Inflation,
    KindChange,
    ModuleChange,
    ProfileWaterfall,
)
from accel_bench.analysis.statistics.estimators import t_bound
from accel_bench.analysis.statistics.verdict import RoundKey

ADDS_UP = 0.05
"""Share of the difference that may be unexplained."""

WORTH_NAMING = 0.01
"""Change of a module over A's step from which it is named."""

MOSTLY = 0.6
"""Share of a module's change from which one module inside it is named."""

UNLIKE = 1.1
"""Ratio of the two inflations from which a note says so."""


class Part(NamedTuple):
    """What a time belongs to."""

    module: str
    kind: StepKind
    direction: Direction


@dataclass(frozen=True)
class ProfiledRun:
    """One run of a stack: its measured window, and its ranks' profiles."""

    seconds: float
    """Seconds of the unit in the measured window."""

    window_step_seconds: float
    """Mean step of that window."""

    ranks: Sequence[ModuleTimes]

    @property
    def parts(self) -> dict[Part, float]:
        """The window's seconds by part: the mean of the ranks."""
        sums: dict[Part, float] = defaultdict(float)
        for rank in self.ranks:
            whole = sum(one.seconds for one in rank.times) * len(self.ranks)
            for one in rank.times:
                part = Part(one.module, one.kind, one.direction)
                sums[part] += self.seconds * one.seconds / whole
        return sums

    @property
    def inflation(self) -> float:
        """How much longer the profiled steps took."""
        return fmean(rank.step_seconds for rank in self.ranks) / self.window_step_seconds


@dataclass(frozen=True)
class ProfiledStack:
    """The profiled runs of one stack."""

    name: str
    runs: Mapping[RoundKey, ProfiledRun]

    @property
    def compiled(self) -> frozenset[str]:
        """Modules that are compiled as one."""
        ranks = (rank for run in self.runs.values() for rank in run.ranks)
        return frozenset(module for rank in ranks for module in rank.compiled)


def profile_waterfall(
    a: ProfiledStack, b: ProfiledStack, scenario: str, unit: str, sweep: str = ""
) -> ProfileWaterfall | None:
    """Return the way from A to B over the rounds that both have; None without one."""
    rounds = sorted(set(a.runs) & set(b.runs))
    if not rounds:
        return None
    pairs = _Pairs([(a.runs[key].parts, b.runs[key].parts) for key in rounds])
    whole = a.compiled | b.compiled
    difference = _change([(a.runs[key].seconds, b.runs[key].seconds) for key in rounds])
    modules = _modules(pairs, whole)
    unexplained = Change(**pairs.change(_is_unexplained))
    named = [
        one for one in modules if abs(one.change) >= WORTH_NAMING * difference["a"] and one.is_sure
    ]
    gained, lost = ([one.module for one in named if side(one.change)] for side in (_less, _more))
    inflation = Inflation(a=_inflation(a, rounds), b=_inflation(b, rounds))
    return ProfileWaterfall(
        scenario=scenario,
        sweep=sweep,
        a=a.name,
        b=b.name,
        unit=unit,
        rounds=len(rounds),
        difference=Change(**difference),
        kinds=tuple(_kinds(pairs)),
        modules=tuple(modules),
        unexplained=unexplained,
        explained=_explained(difference["change"], unexplained.change),
        gained=tuple(gained),
        lost=tuple(lost),
        inflation=inflation,
        notes=tuple(_notes(a, b, inflation, whole)),
    )


class _Pairs:
    """The parts of both stacks, round by round."""

    def __init__(self, rounds: Sequence[tuple[Mapping[Part, float], Mapping[Part, float]]]) -> None:
        self._rounds = rounds
        self.parts = sorted({part for pair in rounds for side in pair for part in side})

    def change(self, chosen: Callable[[Part], bool]) -> dict[str, Any]:
        """Return what all chosen parts together take in A and in B, and the change."""
        sums = (
            [sum(spent for part, spent in side.items() if chosen(part)) for side in pair]
            for pair in self._rounds
        )
        return _change([(a, b) for a, b in sums])

    def changes(self, chosen: Callable[[Part], str]) -> dict[str, float]:
        """Return the mean change by a name of parts, the largest first, without empty names."""
        sums: dict[str, float] = defaultdict(float)
        for a, b in self._rounds:
            for part in self.parts:
                sums[chosen(part)] += (b.get(part, 0.0) - a.get(part, 0.0)) / len(self._rounds)
        return {name: sums[name] for name in sorted(sums, key=lambda n: -abs(sums[n])) if name}


def _change(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the means of pairs, and of their differences with an interval."""
    differences = [b - a for a, b in pairs]
    mean = fmean(differences)
    half = t_bound(differences, 0.975) if len(differences) > 1 else None
    return {
        "a": fmean(a for a, _ in pairs),
        "b": fmean(b for _, b in pairs),
        "change": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
    }


def _kinds(pairs: _Pairs) -> Iterable[KindChange]:
    """Yield the kinds that take time, in their order."""
    for kind in STEP_KINDS:
        change = pairs.change(lambda part: part.kind == kind and not _is_unexplained(part))  # noqa: B023
        if change["a"] or change["b"]:
            yield KindChange(kind=kind, **change)


def _modules(pairs: _Pairs, whole: Iterable[str]) -> list[ModuleChange]:
    """Return the modules that take time, the largest change first."""
    explained = [part for part in pairs.parts if not _is_unexplained(part)]
    names = {module_group(part.module, whole) for part in explained}
    found = (_module(pairs, name, whole) for name in names)
    return sorted(found, key=lambda one: (-abs(one.change), one.module))


def _module(pairs: _Pairs, name: str, whole: Iterable[str]) -> ModuleChange:
    def within(part: Part) -> bool:
        return module_group(part.module, whole) == name and not _is_unexplained(part)

    change = pairs.change(within)
    inside = pairs.changes(lambda part: part.module if within(part) else "")
    most = next(iter(inside), name)
    same_way = inside.get(most, 0.0) * change["change"] > 0
    mostly = same_way and abs(inside[most]) >= MOSTLY * abs(change["change"])
    kinds = pairs.changes(lambda part: part.kind if within(part) else "")
    directions = pairs.changes(lambda part: part.direction if within(part) else "")
    return ModuleChange(
        module=name,
        kinds={kind: kinds[kind] for kind in kinds},  # type: ignore[misc]
        directions=directions,
        mostly=most if mostly and most != name else "",
        **change,
    )


def module_group(path: str, whole: Iterable[str]) -> str:
    """Return the module under which a path is shown: a part of a layer, or what is compiled.

    What one of the stacks compiled as one has no modules to compare with.
    """
    for compiled in sorted(whole, key=len):
        if compiled == ROOT and path != OUTSIDE:
            return ROOT
        if path == compiled or path.startswith(f"{compiled}."):
            return compiled
    parts = path.split(".")
    depth = parts.index("*") + 2 if "*" in parts else 3
    return ".".join(parts[:depth])


def _is_unexplained(part: Part) -> bool:
    return part.module == OUTSIDE and part.kind == "idle"


def _explained(difference: float, unexplained: float) -> float | None:
    return 1 - abs(unexplained / difference) if difference else None


def _inflation(stack: ProfiledStack, rounds: Sequence[RoundKey]) -> float:
    return fmean(stack.runs[key].inflation for key in rounds)


def _less(change: float) -> bool:
    return change < 0


def _more(change: float) -> bool:
    return change > 0


def _notes(
    a: ProfiledStack, b: ProfiledStack, inflation: Inflation, whole: Iterable[str]
) -> Iterable[str]:
    """Yield what limits the answer."""
    for stack in (a, b):
        if stack.compiled:
            listed = ", ".join(sorted(stack.compiled))
            yield f"{stack.name} compiles {listed} as one: no module is seen inside, in either"
    larger, smaller = sorted((inflation.a, inflation.b), reverse=True)
    if larger > UNLIKE * smaller:
        yield (
            f"profiling made steps of {a.name} {inflation.a:.2f} times and those of {b.name} "
            f"{inflation.b:.2f} times as long: parts of many small operations are overstated where "
            "it is more"
        )
