"""Experiments by the values of their keys: what pivots, summaries and scalings are made of."""

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
"""Values of keys, in the order of the keys."""

ALIASES = {"model": "model.id", "hardware": "device", "batch_size": "train.micro_batch_size"}
"""Short names of keys, beside the last part of a setting's name."""

ASIDE = ("environment.", "evaluate.")
"""Prefixes of keys that are no choice for a last part which another key has too."""

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
"""Keys, and all that begin with them, that follow from another one or come with it."""

VERSIONS = ("environment.plugins.", "environment.fingerprints.")
"""Prefixes of keys that say of each plugin which version it had, and what it was made of."""

ACROSS_DEVICES = (*VERSIONS, "environment.versions.")
"""Keys that also have to agree between devices, whose machines differ in all else."""


def find_key(name: str, known: Iterable[str], of: str = "no experiment has a key") -> str:
    """Return the key that a name means among those that are known. Raises StoreError.

    `of` begins the message where there is none.

    The last part of a key will do where no other has it but those of ASIDE, and `optimizer` means
    `optimizer.use`.
    """
    names = set(known)
    for one in (name, ALIASES.get(name, name), f"{name}.use"):
        if one in names:
            return one
    ends = sorted(one for one in names if one.endswith(f".{name}"))
    own = [one for one in ends if not one.startswith(ASIDE)] or ends
    if len(own) == 1:
        return own[0]
    if own:
        raise StoreError(f"{name!r} means several keys: {', '.join(own)}")
    short = {alias for alias, key in ALIASES.items() if key in names}
    raise StoreError(f"{of} {name!r}{did_you_mean(name, names | short)}")


class Keyed(NamedTuple):
    """An experiment with everything by which it can be told from others."""

    keys: Keys
    row: ExperimentRuns

    def at(self, names: Sequence[str]) -> Values:
        """Return its values of some keys; null for those that it does not have."""
        return tuple(self.keys.get(name) for name in names)


def with_keys(rows: Iterable[ExperimentRuns]) -> list[Keyed]:
    """Return experiments with their keys, in an order that does not depend on theirs."""
    found = (Keyed(keys_of(row), row) for row in rows)
    return sorted(found, key=lambda one: (str(one.keys["experiment"]), str(one.keys["stack"])))


def in_order(experiments: Iterable[Keyed], names: Sequence[str]) -> list[Keyed]:
    """Return experiments sorted by their values of some keys."""
    return sorted(experiments, key=lambda one: [place(value) for value in one.at(names)])


def group_by(experiments: Iterable[Keyed], names: Sequence[str]) -> dict[str, list[Keyed]]:
    """Return experiments by the canonical JSON of their values of some keys, as these come up.

    Each experiment is in exactly one group; 1 and true are not the same.
    """
    groups: dict[str, list[Keyed]] = {}
    for one in experiments:
        groups.setdefault(canonical_json(one.at(names)), []).append(one)
    return groups


def values_of(experiments: Iterable[Keyed], names: Sequence[str]) -> tuple[Values, ...]:
    """Return the values that experiments have of some keys, each once, as they come up."""
    return tuple(group[0].at(names) for group in group_by(experiments, names).values())


def varying(experiments: Sequence[Keyed], names: Iterable[str]) -> list[str]:
    """Return the keys of which experiments have several known values."""
    known = {name: {canonical_json(one.keys.get(name)) for one in experiments} for name in names}
    return [name for name, values in known.items() if len(values - {canonical_json(None)}) > 1]


def rest_of(experiments: Sequence[Keyed], key: str) -> list[str]:
    """Return the keys that experiments must have in common to differ in `key` alone.

    What follows from it, as the global batch size from that of a device, is none of them, nor what
    changes neither speed nor training.
    """
    follows = {*WITHOUT_EFFECT, key, key.removesuffix(".use"), *FOLLOWING.get(key, ())}
    if key == "stack":
        stacks = [one.row.planned.experiment.stack for one in experiments]
        changed = {name for stack in stacks for name in stack.settings}
        follows |= changed | {use.use for stack in stacks for use in stack.uses}
        follows |= {name for one in changed for name in FOLLOWING.get(one, ())}
    prefixes = tuple(f"{name}." for name in follows)
    keys = [one.keys for one in experiments]
    return [name for name in differing(keys) if not f"{name}.".startswith(prefixes)]


def same_versions(one: Keys, other: Keys, key: str, strict: bool = False) -> bool:
    """Return whether plugins that both have are of one version, and have one fingerprint.

    Unless it is `strict`, fingerprints of plugins that come with `key` may differ.
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
    """Return prefixes of the fingerprints of plugins that a key chooses or sets options of."""
    section = key.partition(".")[0]
    names = {section, *(str(keys[name]) for name in (f"{section}.use", key) if name in keys)}
    return {f"environment.fingerprints.{name}." for name in names}


def common_baseline(experiments: Sequence[Keyed], baselines: Mapping[str, str]) -> str | None:
    """Return the stack that is the baseline of most sessions of these experiments, by session.

    Only stacks count that are among them; of equals it is that of the newest session.
    """
    stacks = {one.keys["stack"] for one in experiments}
    runs = [run for one in experiments for run in one.row.counted.values()]
    started = {run.session: run.started_at for run in runs}
    newest = sorted(started, key=lambda session: started[session], reverse=True)
    named = [baselines[session] for session in newest if baselines.get(session) in stacks]
    found = Counter(named).most_common(1)
    return found[0][0] if found else None
