"""The plan of a stored session, reconstructed from its record and its results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import Result
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Stack


class StoredPlan(NamedTuple):
    """Plan of a stored session, as `summarize` needs it."""

    baseline: str
    """Stack that the others are compared with."""

    planned: tuple[PlannedSummary, ...]
    """Experiments by sweep point, in the order of the scenario's stacks."""

    rounds: int
    """Number of planned rounds; 0 if unknown."""

    reference: str = ""
    """Tag of the sweep point with which the others are compared; empty for the first."""

    race: bool = False
    """True if a race gave fewer rounds to stacks that could no longer be the best."""

    sections: tuple[str, ...] = ()
    """Names of the selected report sections of other distributions."""


class Place(NamedTuple):
    """Sweep point and stack of a planned experiment."""

    point: str
    """Values of the swept keys, as canonical JSON."""

    stack: str
    tag: str = ""
    skipped: tuple[str, ...] = ()


def stored_plan(
    document: Mapping[str, Any], results: Sequence[Result], whole: bool = True
) -> StoredPlan:
    """Return the plan of a session from its document and at least one result.

    Experiments without results get the settings of an experiment with results. If `whole` is False,
    `results` are only a part of the session's, and the plan has only experiments with results.
    """
    scenario = _mapping(document.get("scenario"))
    known = {(r.experiment.point, r.experiment.stack.name): r.experiment for r in results}
    skipped = {(place.point, place.stack): place for place in _skipped(document)}
    ordered = {(place.point, place.stack): place for place in _ordered(document)}
    places = {**ordered, **skipped} if whole else {}
    keys = list(dict.fromkeys((*places, *known)))
    stacks = list(dict.fromkeys((*_mapping(scenario.get("stacks")), *(name for _, name in keys))))
    points = list(dict.fromkeys(point for point, _ in keys))
    keys.sort(key=lambda key: (points.index(key[0]), stacks.index(key[1])))
    sibling = results[0].experiment
    planned = (
        PlannedSummary(experiment=known[key])
        if key in known
        else PlannedSummary(
            experiment=_stand_in(sibling, places[key], scenario), skipped=places[key].skipped
        )
        for key in keys
    )
    measure, reference = _mapping(scenario.get("measure")), document.get("reference")
    rounds = measure.get("rounds")
    return StoredPlan(
        baseline=_baseline(scenario, stacks),
        planned=tuple(planned),
        rounds=rounds if whole and isinstance(rounds, int) else 0,
        reference=reference if isinstance(reference, str) else "",
        race=whole and document.get("race") is True,
        sections=tuple(name for name in document.get("sections", ()) if isinstance(name, str)),
    )


def planned_runs(document: Mapping[str, Any]) -> int:
    """Return the number of runs that a session's document plans; 0 if unknown."""
    order = _mapping(document.get("order")).values()
    return sum(len(names) for rounds in order for names in rounds if isinstance(names, list))


def _baseline(scenario: Mapping[str, Any], stacks: Sequence[str]) -> str:
    name = scenario.get("baseline")
    if isinstance(name, str):
        return name
    return "baseline" if "baseline" in stacks else stacks[0]


def _ordered(document: Mapping[str, Any]) -> Iterator[Place]:
    """Yield sweep point and stack of each planned experiment, in the order of the rounds."""
    for point, rounds in _mapping(document.get("order")).items():
        names = (name for stacks in rounds if isinstance(stacks, list) for name in stacks)
        yield from (Place(point, name) for name in dict.fromkeys(map(str, names)))


def _skipped(document: Mapping[str, Any]) -> Iterator[Place]:
    entries = document.get("skipped")
    for entry in map(_mapping, entries if isinstance(entries, list) else ()):
        reasons = entry.get("reasons")
        yield Place(
            canonical_json(_mapping(entry.get("sweep"))),
            str(entry.get("stack", "")),
            str(entry.get("tag", "")),
            tuple(map(str, reasons)) if isinstance(reasons, list) and reasons else ("skipped",),
        )


def _stand_in(sibling: Experiment, place: Place, scenario: Mapping[str, Any]) -> Experiment:
    """Return a substitute, without an id, for an experiment that has no runs.

    `place` is its stack and sweep point. The stack's plugins are read from `scenario`. All other
    settings are those of `sibling`, another experiment of the session.
    """
    entry = _mapping(_mapping(scenario.get("stacks")).get(place.stack))
    uses = {"uses": entry.get("use", []), "settings": entry.get("set", {})}
    try:
        stack = Stack.model_validate_json(json.dumps({"name": place.stack, **uses}))
    except ValueError:
        stack = Stack.model_construct(name=place.stack)
    try:
        sweep = _mapping(json.loads(place.point))
    except ValueError:
        sweep = {}
    changes = {"id": "", "stack": stack, "sweep": dict(sweep), "tag": place.tag}
    return sibling.model_copy(update=changes)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
