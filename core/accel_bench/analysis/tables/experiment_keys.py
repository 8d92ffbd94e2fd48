"""Keys by which experiments are arranged in tables: settings, options of plugins, device, stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.facts import device_model
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import StoreError, did_you_mean

ALIASES = {"model": "model.id", "hardware": "device", "batch_size": "train.micro_batch_size"}
"""Short names of keys, beside the last part of a setting's name."""

FIRST_KEYS = ("model.id", "device", "stack")
"""Keys that are tried before all others where experiments must be told apart."""

LAST_KEYS = ("provenance", "scenario", "experiment")
"""Keys that are tried after all others; the last one differs between any two of one stack."""

ASIDE = ("environment.", "evaluate.")
"""Prefixes of keys that are no choice for a last part which another key has too."""

LEFT_OUT = ("name", "description")
"""Parts of a scenario that are no settings."""

_SIZES = ("world_size", "resources", "parallel", "train.global_batch_size", "environment.devices")
_DTYPES = ("compute_dtype", "train.precision", "model.dtype")

FOLLOWING: Mapping[str, tuple[str, ...]] = {
    "train.micro_batch_size": ("train.global_batch_size",),
    "train.gradient_accumulation": ("train.global_batch_size",),
    **dict.fromkeys(("world_size", "resources.devices", "resources.nodes"), _SIZES),
    **dict.fromkeys(_DTYPES, _DTYPES),
    "task.use": ("task.counts",),
    "model.id": ("model",),
    "device": ("environment", "resources"),
}
"""Keys, and all that begin with them, that follow from another one or come with it."""

WITHOUT_EFFECT = (
    *("tag", "experiment", "scenario", "measure.rounds", "measure.seed"),
    *("measure.timeout_seconds", "measure.phase_steps", "measure.exact_update_bytes"),
    *("evaluate.batches", "evaluate.micro_batch_size", "evaluate.steps", "evaluate.every"),
)
"""Keys that change neither speed nor training, or only repeat what other keys hold."""

COMPUTED = {"world_size", "compute_dtype", "train.global_batch_size"}
"""Keys that follow from others."""

VERSIONS = ("environment.plugins.", "environment.fingerprints.")
"""Prefixes of keys that say of each plugin which version it had, and what it was made of."""

ACROSS_DEVICES = (*VERSIONS, "environment.versions.")
"""Keys that also have to agree between devices, whose machines differ in all else."""

ONE_TASK = ("model.attention", "model.dtype")
"""Keys of the model that leave it the same."""

Keys = dict[str, JsonValue]
"""Values of an experiment by dotted key."""


def keys_of(row: ExperimentRuns) -> Keys:
    """Return everything by which an experiment can be told from others, by dotted key.

    What its file does not state is left out for an imported one, and the versions of its
    environment begin with `environment.`.
    """
    experiment = row.planned.experiment
    runs = list(row.counted.values())
    origin = runs[-1].provenance if runs else None
    settings = dict(dotted(experiment.scenario.model_dump(mode="json", exclude=set(LEFT_OUT))))
    if origin and origin.origin == "imported":
        stated = tuple(f"{key}." for key in origin.stated)
        settings = {key: one for key, one in settings.items() if f"{key}.".startswith(stated)}
    else:
        settings["compute_dtype"] = experiment.scenario.compute_dtype
        settings["world_size"] = experiment.scenario.world_size
    for use in experiment.stack.uses:
        settings |= dict(dotted({use.use: use.options}))
    return {
        **settings,
        **dict(dotted({"environment": _environment(row)})),
        **experiment.sweep,
        "stack": experiment.stack.name,
        "device": _device(row),
        "tag": experiment.tag,
        "scenario": experiment.scenario.name,
        "provenance": f"{origin.origin} {origin.format}".rstrip() if origin else "planned",
        "experiment": experiment.id,
    }


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


def differing(keys: Sequence[Keys], swept: Sequence[str] = ()) -> list[str]:
    """Return the keys that have several values: FIRST_KEYS, then swept ones, then settings."""
    seen: dict[str, set[str]] = {}
    for key in sorted({name for one in keys for name in one}):
        seen[key] = {canonical_json(one.get(key)) for one in keys}
    several = [key for key, values in seen.items() if len(values) > 1]
    return sorted(several, key=lambda key: _turn(key, swept))


def usual_keys(keys: Sequence[Keys], swept: Sequence[str]) -> list[str]:
    """Return the keys of FIRST_KEYS and swept ones that have several known values."""
    known = [{key: one for key, one in each.items() if one is not None} for each in keys]
    several = (
        key
        for key in (*FIRST_KEYS, *swept)
        if len({canonical_json(one[key]) for one in known if key in one}) > 1
    )
    return list(dict.fromkeys(several))


def telling_apart(
    keys: Sequence[Keys], chosen: Sequence[str], swept: Sequence[str] = ()
) -> list[str]:
    """Return further keys, so that no two experiments have the same values of all of them.

    Only keys are added that tell apart what the others leave together, in the order of `differing`.
    """
    groups, added = _split([list(keys)], chosen), []
    while clashes := [group for group in groups if len(group) > 1]:
        candidates = [key for key in differing(clashes[0], swept) if key not in chosen]
        if not candidates:
            break
        added.append(candidates[0])
        groups = _split(clashes, [added[-1]])
    return added


def tell_apart(rows: Sequence[ExperimentRuns]) -> list[ExperimentRuns]:
    """Return the rows, those with one name each with settings in which it differs from the others.

    Names are those of a scenario's stack at a sweep point.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row.planned.experiment.scenario.name, row.name), []).append(number)
    found = list(rows)
    for same in (one for one in groups.values() if len(one) > 1):
        keys = [keys_of(rows[number]) for number in same]
        causes = [{key: one[key] for key in one.keys() - COMPUTED} for one in keys]
        names = telling_apart(causes, ())
        for number, one in zip(same, keys, strict=True):
            found[number] = replace(rows[number], apart={name: one.get(name) for name in names})
    return found


def rest_of(rows: Sequence[ExperimentRuns], keys: Sequence[Keys], key: str) -> list[str]:
    """Return the keys that experiments must have in common to differ in `key` alone.

    What follows from it, as the global batch size from that of a device, is none of them, nor what
    changes neither speed nor training.
    """
    follows = {*WITHOUT_EFFECT, key, key.removesuffix(".use"), *FOLLOWING.get(key, ())}
    if key == "stack":
        stacks = [row.planned.experiment.stack for row in rows]
        changed = {name for stack in stacks for name in stack.settings}
        follows |= changed | {use.use for stack in stacks for use in stack.uses}
        follows |= {name for one in changed for name in FOLLOWING.get(one, ())}
    prefixes = tuple(f"{name}." for name in follows)
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


def common_baseline(rows: Iterable[ExperimentRuns], baselines: Mapping[str, str]) -> str | None:
    """Return the stack that is the baseline of most sessions of these experiments, by session.

    Only stacks count that are among them; of equals it is that of the newest session.
    """
    rows = list(rows)
    stacks = {row.planned.experiment.stack.name for row in rows}
    started = {run.session: run.started_at for row in rows for run in row.counted.values()}
    newest = sorted(started, key=lambda session: started[session], reverse=True)
    named = [baselines[session] for session in newest if baselines.get(session) in stacks]
    found = Counter(named).most_common(1)
    return found[0][0] if found else None


def changes_task(key: str) -> bool:
    """Return whether losses with two values of a key are of different tasks: data, or models."""
    return f"{key}.".startswith(("data.", "model.")) and key not in ONE_TASK


def place(value: JsonValue) -> tuple[int, float, str]:
    """Return what a value is sorted by: numbers by size, then texts, then what is not known."""
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, value if isinstance(value, str) else canonical_json(value)


def _split(groups: Iterable[Sequence[Keys]], names: Sequence[str]) -> list[list[Keys]]:
    """Split groups by the values of some keys."""
    found: dict[tuple[int, str], list[Keys]] = {}
    for number, group in enumerate(groups):
        for one in group:
            values = canonical_json([one.get(name) for name in names])
            found.setdefault((number, values), []).append(one)
    return list(found.values())


def _turn(key: str, swept: Sequence[str]) -> tuple[int, int, str]:
    # A tag is made of other keys, and versions count only where no setting differs.
    late = 3 if key == "tag" or key.startswith("environment.") else 2
    for turn, names in ((0, FIRST_KEYS), (1, swept), (4, LAST_KEYS)):
        if key in names:
            return turn, names.index(key), key
    return late, 0, key


def _device(row: ExperimentRuns) -> str | None:
    """Return the name of the device that runs used, else of the one that was planned.

    A CPU has its processor's name where that is known.
    """
    runs, experiment = list(row.counted.values()), row.planned.experiment
    if used := next(filter(None, map(device_model, runs)), None):
        return used
    if experiment.scenario.resources.device == "cpu":
        return next((run.machine.processor for run in runs if run.machine), "") or "cpu"
    environment = experiment.identity.get("environment")
    planned = environment.get("devices") if isinstance(environment, Mapping) else None
    return str(planned[0]) if isinstance(planned, list) and planned else None


def _environment(row: ExperimentRuns) -> JsonValue:
    """Return the environment of the identity, its plugins by name and whole fingerprints."""
    found = row.planned.experiment.identity.get("environment")
    if not isinstance(found, dict):
        return found
    listed, prints = found.get("plugins"), found.get("fingerprints")
    plugins = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    prints = prints if isinstance(prints, dict) else {}
    return {
        **found,
        "plugins": {str(one.get("name")): one.get("version") for one in plugins},
        "fingerprints": {name: canonical_json(one) for name, one in prints.items()},
    }


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield the values of nested mappings by dotted key."""
    for key, item in values.items():
        if isinstance(item, Mapping):
            yield from dotted(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item
