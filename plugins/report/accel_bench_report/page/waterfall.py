"""From the step of one stack to that of another: what each part of a step adds or saves."""

from __future__ import annotations

from typing import NamedTuple

from accel_bench.analysis.metrics.breakdown import Phases
from accel_bench.analysis.metrics.throughput import unit_of
from accel_bench.analysis.schema import ExperimentSummary

PHASES = ("data", "forward", "backward", "optimizer")
"""Parts of a step that engines mark, in their order."""

IDLE = "idle and other"
"""What no mark covers: waiting, and the host's own work between the parts."""


class Bar(NamedTuple):
    """One part of the way from A to B, in milliseconds of the unit."""

    name: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """What B takes more; below 0 it saves."""
        return self.b - self.a


class Waterfall(NamedTuple):
    """Parts of a step in which B gains or loses time against A."""

    a: float
    """Milliseconds of the unit that A takes in its window."""

    b: float
    """The same of B."""

    bars: tuple[Bar, ...]
    """Parts of a step; they add up to both."""

    unit: str
    """What the milliseconds are for."""

    tokens: float
    """Real tokens of the unit."""

    compile_seconds: float
    """What B spends in the compiler once, more than A; below 0 it saves that."""


def waterfall(a: ExperimentSummary, b: ExperimentSummary) -> Waterfall | None:
    """Return the way from A's time to B's, or None where either is not split into phases.

    The time is that of the window, by the speeds of the table; its parts are in the proportion of
    the split steps, which follow the window. Where a step of both holds as many real tokens, the
    unit is a step, else 1,000 tokens.
    """
    if not (a.phases and b.phases and a.tokens and b.tokens):
        return None
    if not (a.tokens_per_second and b.tokens_per_second):
        return None
    tokens, unit = unit_of([row.tokens.per_step_global.real for row in (a, b) if row.tokens])
    totals = [1000 * tokens / row.tokens_per_second.median for row in (a, b)
              if row.tokens_per_second]  # fmt: skip
    parts = [_parts(p, t) for p, t in zip((a.phases, b.phases), totals, strict=True)]
    bars = [Bar(name, parts[0][name], parts[1][name]) for name in (*PHASES, IDLE)]
    return Waterfall(
        a=totals[0],
        b=totals[1],
        bars=tuple(bar for bar in bars if bar.a or bar.b),
        unit=unit,
        tokens=tokens,
        compile_seconds=_compiling(b) - _compiling(a),
    )


def _parts(phases: Phases, total: float) -> dict[str, float]:
    """Return milliseconds by part; medians of phases may exceed the step's by a little."""
    known = {name: getattr(phases, name) or 0.0 for name in PHASES}
    whole = max(phases.step_seconds, sum(known.values()))
    shares = {name: seconds / whole for name, seconds in known.items()}
    shares[IDLE] = max(0.0, 1.0 - sum(shares.values()))
    return {name: share * total for name, share in shares.items()}


def _compiling(row: ExperimentSummary) -> float:
    return (row.start_up.compile_seconds if row.start_up else None) or 0.0
