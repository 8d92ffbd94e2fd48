"""Experiments by batch size, learning rate, optimizer, precision or hardware, all else equal.

A mean over everything that happens to have one value says nothing: fast models may have been run
with small batches. So values are compared within experiments that differ in that key alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.aggregate import ExperimentRuns, shared_steps
from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval, log_interval
from accel_bench.analysis.statistics.seeds import loss_at_end
from accel_bench.analysis.tables.experiment_keys import Keys, changes_task, keys_of, place
from accel_bench.analysis.tables.points import against
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench_report.tables.chosen_keys import (
    VERSIONS,
    common_baseline,
    find_key,
    rest_of,
    same_versions,
)
from accel_bench_report.tables.pivot import MAIN_KEYS, MEASURED, NO_BASELINES, STACK, cell_word

Rows = Sequence[tuple[Keys, ExperimentRuns]]
"""Experiments with their keys."""

ByValue = dict[str, list[ExperimentRuns]]
"""Experiments by the values of one key, as canonical JSON."""

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
    rows = [(keys_of(row), row) for row in experiments]
    rows.sort(key=lambda one: (str(one[0]["experiment"]), str(one[0]["stack"])))
    known = {name for one, _ in rows for name in one}
    chosen = list(dict.fromkeys(find_key(name, known) for name in keys))
    chosen = chosen or [key for key in MAIN_KEYS if _several(rows, key)]
    baseline = common_baseline((row for _, row in rows), baselines)
    return GroupedSummary(
        experiments=len(rows),
        by=tuple(_by_key(rows, key, baseline if key == STACK else None) for key in chosen),
    )


def _several(rows: Iterable[tuple[Keys, ExperimentRuns]], key: str) -> bool:
    return len({canonical_json(keys[key]) for keys, _ in rows if keys.get(key) is not None}) > 1


def _by_key(
    rows: Sequence[tuple[Keys, ExperimentRuns]], key: str, reference: str | None
) -> KeySummary:
    """Summarize by one key; without a reference, values are compared with the first."""
    groups: dict[str, list[tuple[Keys, ExperimentRuns]]] = {}
    for one in sorted(rows, key=lambda one: place(one[0].get(key))):
        groups.setdefault(canonical_json(one[0].get(key)), []).append(one)
    names = list(groups)
    if reference is not None:
        names.sort(key=lambda name: name != canonical_json(reference))
    first = next(iter(names), "")
    found = _alike(rows, key, names)
    return KeySummary(
        key=key, groups=tuple(_group(key, name, groups, found, first) for name in names)
    )


class _Alike(NamedTuple):
    """Experiments that differ in one key alone."""

    sets: list[ByValue]
    """Experiments of each value that belong to one experiment of the first value that is there."""

    ambiguous: Counter[str]
    """How many of each value could belong to several of them."""


def _alike(rows: Rows, key: str, values: Sequence[str]) -> _Alike:
    """Collect experiments that differ in this key alone, with equal versions of plugins."""
    rest = rest_of([row for _, row in rows], [keys for keys, _ in rows], key)
    others = [name for name in rest if not name.startswith(VERSIONS)]
    shared: dict[str, list[tuple[Keys, ExperimentRuns]]] = {}
    for keys, row in rows:
        if row.usable:
            at = canonical_json([keys.get(name) for name in others])
            shared.setdefault(at, []).append((keys, row))
    found = _Alike([], Counter())
    for one in shared.values():
        _match(one, key, values, found)
    return found


def _match(rows: Rows, key: str, values: Sequence[str], found: _Alike) -> None:
    """Add to `found` each experiment beside that of the first value with which it belongs."""
    by_value = {value: [one for one in rows if _value(one, key) == value] for value in values}
    first = next(value for value in values if by_value[value])
    bases = by_value.pop(first)
    sets: dict[int, ByValue] = {id(row): {first: [row]} for _, row in bases}
    for value, several in by_value.items():
        for one in several:
            fitting = _fitting(one, bases, key)
            if len(fitting) == 1:
                sets[id(fitting[0])].setdefault(value, []).append(one[1])
            found.ambiguous[value] += len(fitting) > 1
    found.sets.extend(sets.values())


def _fitting(one: tuple[Keys, ExperimentRuns], bases: Rows, key: str) -> list[ExperimentRuns]:
    """Return the experiments with which one may be compared: those of its sessions, if any."""
    keys, row = one
    found = [base for base in bases if same_versions(keys, base[0], key)]
    found = [base for base in found if same_versions(keys, base[0], key, strict=True)] or found
    sessions = {session for session, _ in row.speeds}
    together = [base for _, base in found if any(at in sessions for at, _ in base.speeds)]
    return together or [base for _, base in found]


def _value(one: tuple[Keys, ExperimentRuns], key: str) -> str:
    return canonical_json(one[0].get(key))


def _group(
    key: str,
    name: str,
    groups: Mapping[str, Sequence[tuple[Keys, ExperimentRuns]]],
    alike: _Alike,
    first: str,
) -> Group:
    own = [row for _, row in groups[name]]
    usable = [row for row in own if row.usable]
    speeds = [speed.median for row in usable if (speed := row.tokens_per_second)]
    peaks = [peak for row in usable if (peak := peak_memory(list(row.completed.values()))[0])]
    pairs = [
        (row, one[first][0]) for one in alike.sets if first in one for row in one.get(name, ())
    ]
    ratios = [] if name == first else [against(row, base).ratio for row, base in pairs]
    of_one_task = not changes_task(key)
    losses = [found for one in alike.sets if of_one_task and name in (found := _losses(one))]
    return Group(
        value=groups[name][0][0].get(key),
        experiments=len(own),
        counts=dict(sorted(Counter(_word(row) for row in own).items())),
        slowest=min(speeds, default=None),
        fastest=max(speeds, default=None),
        smallest_peak_bytes=min(peaks, default=None),
        largest_peak_bytes=max(peaks, default=None),
        times_as_fast=_mean([ratio for ratio in ratios if ratio is not None]),
        pairs=sum(ratio is not None for ratio in ratios),
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
