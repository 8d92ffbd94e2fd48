"""Experiments by batch size, learning rate, optimizer, precision or hardware, all else equal.

A mean over everything that happens to have one value says nothing: fast models may have been run
with small batches. So values are compared within experiments that differ in that key alone.
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
"""Experiments by their values of one key, which are named as those of `group_by`."""

IMPORTED = "imported"
"""Word of experiments that were not measured here: they are counted and never compared."""


class Group(Frozen):
    """Experiments that have one value of a key."""

    value: JsonValue
    """The value; null where it is not known."""

    experiments: int
    """How many there are."""

    counts: dict[str, int]
    """Experiments that were measured, and the others by their word, such as `OOM`."""

    slowest: float | None
    """Least tokens per second of a measured one."""

    fastest: float | None
    """Most tokens per second of a measured one."""

    smallest_peak_bytes: int | None
    """Least peak of memory of a measured one, per device."""

    largest_peak_bytes: int | None
    """Largest peak of memory."""

    times_as_fast: Interval | None
    """Speed over that of experiments with the first value and all else equal: the geometric mean,
    with a 95 % t interval over those pairs; of one pair its own interval."""

    pairs: int
    """Pairs of experiments that differ in this key alone, with equal versions of plugins."""

    ambiguous: int = 0
    """Experiments without a pair, since several that ran in no common session would fit."""

    lowest_loss: int
    """Comparisons, all else being equal, in which this value has the lowest loss at the end."""

    of_losses: int
    """Comparisons in which it has one, and another value too; none where the key changes the model
    or the data, whose losses do not compare."""


class KeySummary(Frozen):
    """All experiments by the values of one key: each is in exactly one group."""

    key: str
    """Dotted key."""

    groups: tuple[Group, ...]
    """One for each value, in order; of stacks the sessions' baseline comes first."""


class GroupedSummary(Document):
    """Stored experiments summarized by setting."""

    experiments: int
    """How many there are."""

    by: tuple[KeySummary, ...]
    """A summary for each key."""


def summarize_by(
    experiments: Sequence[ExperimentRuns],
    keys: Sequence[str] = (),
    baselines: Mapping[str, str] = NO_BASELINES,
) -> GroupedSummary:
    """Summarize experiments by each of these keys. Raises StoreError.

    Without any, by those of MAIN_KEYS in which they differ. `baselines` are names of stacks by
    session.
    """
    found = with_keys(experiments)
    known = {name for one in found for name in one.keys}
    chosen = list(dict.fromkeys(find_key(name, known) for name in keys))
    chosen = chosen or varying(found, MAIN_KEYS)
    baseline = common_baseline(found, baselines)
    return GroupedSummary(
        experiments=len(found),
        by=tuple(_by_key(found, key, baseline if key == STACK else None) for key in chosen),
    )


def _by_key(experiments: Sequence[Keyed], key: str, reference: str | None) -> KeySummary:
    """Summarize by one key; without a reference, values are compared with the first."""
    groups = group_by(in_order(experiments, [key]), [key])
    names = list(groups)
    if reference is not None:
        names.sort(key=lambda name: name != canonical_json([reference]))
    alike = _alike(experiments, key, names)
    return KeySummary(
        key=key, groups=tuple(_group(key, name, groups[name], alike) for name in names)
    )


class _Alike(NamedTuple):
    """Experiments that differ in one key alone."""

    first: str
    """The value with which others are compared."""

    sets: list[ByValue]
    """Experiments of each value that belong to one experiment of the first value that is there."""

    ambiguous: Counter[str]
    """How many of each value could belong to several of them."""


def _alike(experiments: Sequence[Keyed], key: str, values: Sequence[str]) -> _Alike:
    """Collect experiments that differ in this key alone, with equal versions of plugins."""
    others = [name for name in rest_of(experiments, key) if not name.startswith(VERSIONS)]
    found = _Alike(next(iter(values), ""), [], Counter())
    for shared in group_by((one for one in experiments if one.row.usable), others).values():
        _match(group_by(shared, [key]), key, values, found)
    return found


def _match(
    by_value: dict[str, list[Keyed]], key: str, values: Sequence[str], found: _Alike
) -> None:
    """Add to `found` each experiment beside that of the first value with which it belongs."""
    first = next(value for value in values if value in by_value)
    bases = by_value.pop(first)
    sets: dict[int, ByValue] = {id(base.row): {first: [base.row]} for base in bases}
    for value, several in by_value.items():
        for one in several:
            fitting = _fitting(one, bases, key)
            if len(fitting) == 1:
                sets[id(fitting[0])].setdefault(value, []).append(one.row)
            found.ambiguous[value] += len(fitting) > 1
    found.sets.extend(sets.values())


def _fitting(one: Keyed, bases: Sequence[Keyed], key: str) -> list[ExperimentRuns]:
    """Return the experiments with which one may be compared: those of its sessions, if any."""
    found = [base for base in bases if same_versions(one.keys, base.keys, key)]
    found = [base for base in found if same_versions(one.keys, base.keys, key, True)] or found
    sessions = {session for session, _ in one.row.speeds}
    together = [base.row for base in found if any(at in sessions for at, _ in base.row.speeds)]
    return together or [base.row for base in found]


def _group(key: str, name: str, members: Sequence[Keyed], alike: _Alike) -> Group:
    own = [one.row for one in members]
    usable = [row for row in own if row.usable]
    speeds = [speed.median for row in usable if (speed := row.tokens_per_second)]
    peaks = [peak for row in usable if (peak := peak_memory(list(row.completed.values()))[0])]
    others = alike.sets if name != alike.first else []
    pairs = [against(row, base) for one in others for base in one.get(alike.first, ())
             for row in one.get(name, ())]  # fmt: skip
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    of_one_task = not changes_task(key)
    losses = [found for one in alike.sets if of_one_task and name in (found := _losses(one))]
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
        lowest_loss=sum(_is_lowest(name, found) for found in losses),
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
    """Return losses at the end of the steps that all took; empty with fewer than two.

    A value of which several experiments belong here has none.
    """
    rows = {name: found[0] for name, found in several.items() if len(found) == 1}
    steps = shared_steps(list(rows.values()))
    found = {name: loss_at_end(row, steps) for name, row in rows.items()}
    known = {name: loss for name, loss in found.items() if loss is not None}
    return known if len(known) > 1 else {}
