"""Comparison of experiments by batch size, learning rate, optimizer, precision or hardware.

Means over all experiments with a value would mislead: fast models may have run with small batches.
So values are compared between experiments that differ in that key only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.aggregate import ExperimentRuns, shared_steps
from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval, log_interval
from accel_bench.analysis.tables.experiment_keys import changes_task
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench_report.seeds import loss_at_end
from accel_bench_report.tables.keyed import (
    VERSIONS,
    Keyed,
    common_baseline,
    find_key,
    group_by,
    in_order,
    rest_of,
    same_versions,
    varying,
    with_keys,
)
from accel_bench_report.tables.pivot import MAIN_KEYS, MEASURED, NO_BASELINES, STACK, cell_word
from accel_bench_report.tables.points import against

ByValue = dict[str, list[ExperimentRuns]]
"""Experiments by canonical JSON of their value of one key."""

IMPORTED = "imported"
"""Word for imported experiments, which are counted and never compared."""


class Group(Frozen):
    """Experiments that have one value of a key."""

    value: JsonValue
    """Value of the key; null if unknown."""

    experiments: int
    """Number of experiments with the value."""

    counts: dict[str, int]
    """Number of measured experiments, and of others by their word, such as `OOM`."""

    slowest: float | None
    """Lowest tokens per second of the measured experiments."""

    fastest: float | None
    """Highest tokens per second of the measured experiments."""

    smallest_peak_bytes: int | None
    """Lowest peak memory of the measured experiments, in bytes per device."""

    largest_peak_bytes: int | None
    """Highest peak memory of the measured experiments, in bytes per device."""

    times_as_fast: Interval | None
    """Speed relative to experiments with the first value, all other settings equal: geometric mean
    over pairs with a 95 % t interval; a single pair's own interval."""

    pairs: int
    """Number of pairs of experiments that differ in this key only, with equal plugin versions."""

    ambiguous: int = 0
    """Number of experiments left out because several partners without a common session match."""

    lowest_loss: int
    """Number of comparisons, all else equal, in which this value has the lowest final loss."""

    of_losses: int
    """Number of comparisons in which this value and another have a loss; 0 for keys that change the
    model or the data."""


class KeySummary(Frozen):
    """Experiments grouped by the values of one key, each in exactly one group."""

    key: str
    """Dotted name of the key."""

    groups: tuple[Group, ...]
    """Groups by value, in order; for stacks the sessions' baseline comes first."""


class GroupedSummary(Document):
    """Stored experiments summarized by setting."""

    experiments: int
    """Number of experiments."""

    by: tuple[KeySummary, ...]
    """Summaries by key."""


def summarize_by(
    experiments: Sequence[ExperimentRuns],
    keys: Sequence[str] = (),
    baselines: Mapping[str, str] = NO_BASELINES,
) -> GroupedSummary:
    """Return a summary of experiments by each of `keys`. Raises StoreError for an unknown key.

    By default the keys are those of MAIN_KEYS that have several values. `baselines` are names of
    baseline stacks by session.
    """
    keyed = with_keys(experiments)
    known = {name for entry in keyed for name in entry.keys}
    chosen = list(dict.fromkeys(find_key(name, known) for name in keys))
    chosen = chosen or varying(keyed, MAIN_KEYS)
    baseline = common_baseline(keyed, baselines)
    return GroupedSummary(
        experiments=len(keyed),
        by=tuple(_by_key(keyed, key, baseline if key == STACK else None) for key in chosen),
    )


def _by_key(experiments: Sequence[Keyed], key: str, reference: str | None) -> KeySummary:
    """Return the summary by one key, in which `reference`, or else the first value, comes first."""
    groups = group_by(in_order(experiments, [key]), [key])
    names = list(groups)
    if reference is not None:
        names.sort(key=lambda name: name != canonical_json([reference]))
    alike = _alike(experiments, key, names)
    return KeySummary(
        key=key, groups=tuple(_group(key, name, groups[name], alike) for name in names)
    )


class _Alike(NamedTuple):
    """Sets of experiments that differ in one key only."""

    first: str
    """First value of the key as canonical JSON, with which other values are compared."""

    sets: list[ByValue]
    """Comparable experiments by value, a set for each experiment with the first value found."""

    ambiguous: Counter[str]
    """Number of experiments, by value, that match several sets."""


def _alike(experiments: Sequence[Keyed], key: str, values: Sequence[str]) -> _Alike:
    """Return sets of experiments that differ in `key` only, with equal plugin versions.

    `values` are the key's values as canonical JSON; the others are compared with the first.
    """
    others = [name for name in rest_of(experiments, key) if not name.startswith(VERSIONS)]
    alike = _Alike(next(iter(values), ""), [], Counter())
    for shared in group_by((entry for entry in experiments if entry.row.usable), others).values():
        _match(group_by(shared, [key]), key, values, alike)
    return alike


def _match(
    by_value: dict[str, list[Keyed]], key: str, values: Sequence[str], found: _Alike
) -> None:
    """Add sets to `found` for experiments that are equal in all settings but `key`.

    Each experiment joins the set that it matches; if it matches several, it counts as ambiguous.
    """
    first = next(value for value in values if value in by_value)
    bases = by_value.pop(first)
    sets: dict[int, ByValue] = {id(base.row): {first: [base.row]} for base in bases}
    for value, several in by_value.items():
        for entry in several:
            fitting = _fitting(entry, bases, key)
            if len(fitting) == 1:
                sets[id(fitting[0])].setdefault(value, []).append(entry.row)
            found.ambiguous[value] += len(fitting) > 1
    found.sets.extend(sets.values())


def _fitting(one: Keyed, bases: Sequence[Keyed], key: str) -> list[ExperimentRuns]:
    """Return the experiments in `bases` with the plugin versions of `one`: only those that share a
    session with `one`, if there are any."""
    equal = [base for base in bases if same_versions(one.keys, base.keys, key)]
    equal = [base for base in equal if same_versions(one.keys, base.keys, key, True)] or equal
    sessions = {session for session, _ in one.row.speeds}
    together = [base.row for base in equal if any(at in sessions for at, _ in base.row.speeds)]
    return together or [base.row for base in equal]


def _group(key: str, name: str, members: Sequence[Keyed], alike: _Alike) -> Group:
    own = [entry.row for entry in members]
    usable = [row for row in own if row.usable]
    speeds = [speed.median for row in usable if (speed := row.tokens_per_second)]
    peaks = [peak for row in usable if (peak := peak_memory(list(row.completed.values()))[0])]
    others = alike.sets if name != alike.first else []
    pairs = [against(row, base) for by_value in others for base in by_value.get(alike.first, ())
             for row in by_value.get(name, ())]  # fmt: skip
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    of_one_task = not changes_task(key)
    losses = [
        known for by_value in alike.sets if of_one_task and name in (known := _losses(by_value))
    ]
    return Group(
        value=members[0].keys.get(key),
        experiments=len(own),
        counts=dict(sorted(Counter(map(_word, own)).items())),
        slowest=min(speeds, default=None),
        fastest=max(speeds, default=None),
        smallest_peak_bytes=min(peaks, default=None),
        largest_peak_bytes=max(peaks, default=None),
        times_as_fast=_mean(ratios),
        pairs=len(ratios),
        ambiguous=alike.ambiguous[name],
        lowest_loss=sum(_is_lowest(name, known) for known in losses),
        of_losses=len(losses),
    )


def _is_lowest(name: str, losses: Mapping[str, float]) -> bool:
    return all(losses[name] < loss for other, loss in losses.items() if other != name)


def _word(row: ExperimentRuns) -> str:
    return IMPORTED if row.imported else cell_word(row) or MEASURED


def _mean(ratios: Sequence[Interval]) -> Interval | None:
    if len(ratios) == 1:
        return ratios[0]
    return log_interval([math.log(ratio.median) for ratio in ratios])


def _losses(several: ByValue) -> dict[str, float]:
    """Return losses by value, after the same step; empty if fewer than two are known.

    The step is the last that all experiments have. Values with several experiments in the set are
    left out.
    """
    rows = {name: own[0] for name, own in several.items() if len(own) == 1}
    steps = shared_steps(list(rows.values()))
    losses = {name: loss_at_end(row, steps) for name, row in rows.items()}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    return known if len(known) > 1 else {}
