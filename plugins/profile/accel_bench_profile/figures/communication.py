"""Collectives of recorded steps, and what of them is hidden behind computation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from accel_bench_profile.figures.kinds import BACKEND, computes, kind_of
from accel_bench_profile.figures.schema import CollectiveTime, CommunicationTime
from accel_bench_profile.figures.spans import Cycle, Span, length, within, without


def communication_time(cycles: Sequence[Cycle]) -> CommunicationTime | None:
    """Return the collectives of a mean step; None where there was none."""
    steps = [(cycle, step) for cycle in cycles for step in cycle.steps]
    found = [(step, collectives_of(cycle), _computing(cycle)) for cycle, step in steps]
    if not any(collectives for _, collectives, _ in found):
        return None
    whole = sum(step.end - step.start for step, _, _ in found)
    under_way = [within(collectives, step) for step, collectives, _ in found]
    spent = sum(map(length, under_way))
    exposed = sum(
        length(without(one, within(computing, step)))
        for one, (step, _, computing) in zip(under_way, found, strict=True)
    )
    return CommunicationTime(
        seconds=spent / len(steps) / 1e9,
        exposed_seconds=exposed / len(steps) / 1e9,
        share=spent / whole,
        exposed_share=exposed / whole,
        collectives=_by_name(cycles, len(steps)),
    )


def collectives_of(cycle: Cycle) -> list[Span]:
    """Return kernels of collectives; on a CPU their calls, and what the backend does for them."""
    if cycle.device:
        return [one for one in cycle.device if kind_of(one.name) == "communication"]
    return [
        one
        for one in cycle.spans
        if (one.kind == "operation" and kind_of(one.name) == "communication")
        or (one.kind == "range" and BACKEND.search(one.name))
    ]


def _computing(cycle: Cycle) -> list[Span]:
    if cycle.device:
        return [one for one in cycle.device if kind_of(one.name) != "communication"]
    return [one for one in cycle.operations if computes(one.name)]


def _by_name(cycles: Sequence[Cycle], steps: int) -> tuple[CollectiveTime, ...]:
    """Return the collectives by name; on a CPU by what runs them, else they would count twice."""
    calls: dict[str, int] = defaultdict(int)
    spent: dict[str, int] = defaultdict(int)
    spans = [one for cycle in cycles for one in collectives_of(cycle)]
    backend = [one for one in spans if one.kind == "range"]
    for one in backend or spans:
        calls[one.name] += 1
        spent[one.name] += one.end - one.start
    return tuple(
        CollectiveTime(name=name, calls=calls[name] / steps, seconds=spent[name] / steps / 1e9)
        for name in sorted(spent, key=lambda name: -spent[name])
    )
