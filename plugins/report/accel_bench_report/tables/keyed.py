"""Experiments with the values of their setting keys, for pivots, summaries and scaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.tables.experiment_keys import (
    WITHOUT_EFFECT,
    Keys,
    differing,
    keys_of,
    place,
)
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import StoreError, did_you_mean

Values = tuple[JsonValue, ...]
"""Values of setting keys, in the order of the keys."""

ALIASES = {"model": "model.id", "hardware": "device", "batch_size": "train.micro_batch_size"}
"""Short names of setting keys, which may also be given by the last part of their dotted name."""

ASIDE = ("environment.", "evaluate.")
"""Prefixes of keys that a short name means only if no other key has the same last part."""

_SIZES = ("world_size", "resources", "parallel", "train.global_batch_size", "environment.devices")

_DTYPES = ("compute_dtype", "train.precision", "model.dtype")

FOLLOWING: Mapping[str, tuple[str, ...]] = {
    "train.micro_batch_size": ("train.global_batch_size",),
    "train.gradient_accumulation": ("train.global_batch_size",),
    **dict.fromkeys(("world_size", "resources.devices", "resources.nodes"), _SIZES),
    "resources.devices_by_node": _SIZES,
    **dict.fromkeys(_DTYPES, _DTYPES),
    "task.use": ("task.counts",),
    "model.id": ("model",),
    "device": ("environment", "resources"),
}
"""Keys or key prefixes that change as a consequence of another key."""

VERSIONS = ("environment.plugins.", "environment.fingerprints.")
"""Prefixes of keys with each plugin's version and fingerprint."""

ACROSS_DEVICES = (*VERSIONS, "environment.versions.")
"""Prefixes of the only environment keys that must be equal when devices are compared."""


def find_key(name: str, known: Iterable[str], of: str = "no experiment has a key") -> str:
    """Return the full key for `name`, which may be short, among the keys `known`.

    The last part of a key suffices if it is unique; keys with prefixes in ASIDE count only if no
    other key matches. `optimizer` stands for `optimizer.use`. Raises StoreError if several keys
    match, or none, with a message that begins with `of`.
    """
    names = set(known)
    for full in (name, ALIASES.get(name, name), f"{name}.use"):
        if full in names:
            return full
    ends = sorted(key for key in names if key.endswith(f".{name}"))
    own = [key for key in ends if not key.startswith(ASIDE)] or ends
    if len(own) == 1:
        return own[0]
    if own:
        raise StoreError(f"{name!r} means several keys: {', '.join(own)}")
    short = {alias for alias, key in ALIASES.items() if key in names}
    raise StoreError(f"{of} {name!r}{did_you_mean(name, names | short)}")


class Keyed(NamedTuple):
    """An experiment with all settings that distinguish it from others."""

    keys: Keys
    row: ExperimentRuns

    def at(self, names: Sequence[str]) -> Values:
        """Return the experiment's values of the keys `names`; None for a missing key."""
        return tuple(self.keys.get(name) for name in names)


def with_keys(rows: Iterable[ExperimentRuns]) -> list[Keyed]:
    """Return experiments with their keys, in an order that does not depend on the given order."""
    keyed = (Keyed(keys_of(row), row) for row in rows)
    return sorted(
        keyed, key=lambda entry: (str(entry.keys["experiment"]), str(entry.keys["stack"]))
    )


def in_order(experiments: Iterable[Keyed], names: Sequence[str]) -> list[Keyed]:
    """Return experiments sorted by their values of the keys `names`."""
    return sorted(experiments, key=lambda entry: [place(value) for value in entry.at(names)])


def group_by(experiments: Iterable[Keyed], names: Sequence[str]) -> dict[str, list[Keyed]]:
    """Return experiments by canonical JSON of their values of the keys `names`.

    Groups are in order of appearance, and each experiment is in one of them; 1 and true are
    different values.
    """
    groups: dict[str, list[Keyed]] = {}
    for entry in experiments:
        groups.setdefault(canonical_json(entry.at(names)), []).append(entry)
    return groups


def values_of(experiments: Iterable[Keyed], names: Sequence[str]) -> tuple[Values, ...]:
    """Return the distinct values of the keys `names` among experiments, in order of appearance."""
    return tuple(group[0].at(names) for group in group_by(experiments, names).values())


def varying(experiments: Sequence[Keyed], names: Iterable[str]) -> list[str]:
    """Return the keys in `names` that have several known values among experiments."""
    known = {
        name: {canonical_json(entry.keys.get(name)) for entry in experiments} for name in names
    }
    return [name for name, values in known.items() if len(values - {canonical_json(None)}) > 1]


def rest_of(experiments: Sequence[Keyed], key: str) -> list[str]:
    """Return the keys that must be equal in experiments that differ only in `key`.

    Left out are keys that change with `key`, as the global batch size does with the micro-batch
    size, and keys that change neither speed nor training.
    """
    follows = {*WITHOUT_EFFECT, key, key.removesuffix(".use"), *FOLLOWING.get(key, ())}
    if key == "stack":
        stacks = [entry.row.planned.experiment.stack for entry in experiments]
        changed = {name for stack in stacks for name in stack.settings}
        follows |= changed | {use.use for stack in stacks for use in stack.uses}
        follows |= {name for setting in changed for name in FOLLOWING.get(setting, ())}
    prefixes = tuple(f"{name}." for name in follows)
    keys = [entry.keys for entry in experiments]
    return [name for name in differing(keys) if not f"{name}.".startswith(prefixes)]


def same_versions(one: Keys, other: Keys, key: str, strict: bool = False) -> bool:
    """Return whether the plugins of two experiments have equal versions and fingerprints.

    `one` and `other` are the experiments' settings. Unless `strict`, the fingerprints of the
    plugins that `key` selects may differ.
    """
    free = () if strict else tuple(_coming_with(key, one) | _coming_with(key, other))
    prefixes = ACROSS_DEVICES if key == "device" else VERSIONS
    return all(
        _public(name, one[name]) == _public(name, other[name])
        for name in one.keys() & other.keys()
        if name.startswith(prefixes) and not f"{name}.".startswith(free)
    )


def _public(name: str, value: JsonValue) -> JsonValue:
    # What stands behind the plus of a version of torch follows from the device.
    return value if name.startswith(VERSIONS) else str(value).partition("+")[0]


def _coming_with(key: str, keys: Keys) -> set[str]:
    """Return prefixes of the keys that hold fingerprints of the plugins that `key` selects.

    `keys` has the settings of an experiment, from which these plugins are read.
    """
    section = key.partition(".")[0]
    names = {section, *(str(keys[name]) for name in (f"{section}.use", key) if name in keys)}
    return {f"environment.fingerprints.{name}." for name in names}


def common_baseline(experiments: Sequence[Keyed], baselines: Mapping[str, str]) -> str | None:
    """Return the stack that is the baseline of most sessions of the experiments; None if unknown.

    `baselines` maps session ids to names. Only stacks among the experiments count; ties go to the
    newest session.
    """
    stacks = {entry.keys["stack"] for entry in experiments}
    runs = [run for entry in experiments for run in entry.row.counted.values()]
    started = {run.session: run.started_at for run in runs}
    newest = sorted(started, key=lambda session: started[session], reverse=True)
    named = [baselines[session] for session in newest if baselines.get(session) in stacks]
    most = Counter(named).most_common(1)
    return most[0][0] if most else None
