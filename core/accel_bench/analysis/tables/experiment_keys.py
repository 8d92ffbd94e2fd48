"""Keys that distinguish experiments in tables: settings, options of plugins, device, stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.device_kinds import device_model
from accel_bench.analysis.tables.listing import provenance_of
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.scenario.draft import dotted

FIRST_KEYS = ("model.id", "device", "stack")
"""Keys that are preferred to distinguish experiments."""

LAST_KEYS = ("provenance", "scenario", "experiment")
"""Keys that are the last choice to distinguish experiments."""

LEFT_OUT = ("name", "description")
"""Fields of a scenario that are no settings."""

WITHOUT_EFFECT = (
    *("tag", "experiment", "scenario", "measure.rounds", "measure.seed"),
    *("measure.compare", "measure.prune"),
    *("measure.timeout_seconds", "measure.phase_steps", "measure.exact_update_bytes"),
    *("evaluate.batches", "evaluate.micro_batch_size", "evaluate.steps", "evaluate.every"),
)
"""Keys that change neither speed nor training, or that repeat other keys."""

COMPUTED = {"world_size", "compute_dtype", "train.global_batch_size"}
"""Keys whose values follow from other keys."""

ONE_TASK = ("model.attention", "model.dtype")
"""Keys of the model under which losses remain comparable."""

Keys = dict[str, JsonValue]
"""Values of an experiment's keys, by dotted key."""


def keys_of(row: ExperimentRuns) -> Keys:
    """Return the values of all keys of an experiment, by dotted key.

    Keys that an imported file does not state are left out; environment keys begin with
    `environment.`.
    """
    experiment = row.planned.experiment
    runs = list(row.counted.values())
    origin = runs[-1].provenance if runs else None
    settings = dict(dotted(experiment.scenario.model_dump(mode="json", exclude=set(LEFT_OUT))))
    if origin and origin.origin == "imported":
        stated = tuple(f"{key}." for key in origin.stated)
        settings = {key: value for key, value in settings.items() if f"{key}.".startswith(stated)}
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
        "provenance": provenance_of(runs[-1]) if runs else "planned",
        "experiment": experiment.id,
    }


def differing(keys: Sequence[Keys], swept: Sequence[str] = ()) -> list[str]:
    """Return the keys with different values in `keys`: FIRST_KEYS, then `swept`, then others."""
    seen: dict[str, set[str]] = {}
    for key in sorted({name for values in keys for name in values}):
        seen[key] = {canonical_json(values.get(key)) for values in keys}
    several = [key for key, values in seen.items() if len(values) > 1]
    return sorted(several, key=lambda key: _turn(key, swept))


def telling_apart(
    keys: Sequence[Keys], chosen: Sequence[str], swept: Sequence[str] = ()
) -> list[str]:
    """Return keys that, added to `chosen`, distinguish any two of the experiments in `keys`.

    Only necessary keys are added, in the order of `differing`.
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
    """Return the experiments, with distinguishing settings in `apart` if their names are equal.

    Names consist of scenario, stack and sweep point.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row.planned.experiment.scenario.name, row.name), []).append(number)
    result = list(rows)
    for same in (numbers for numbers in groups.values() if len(numbers) > 1):
        keys = [keys_of(rows[number]) for number in same]
        causes = [{key: values[key] for key in values.keys() - COMPUTED} for values in keys]
        names = telling_apart(causes, ())
        for number, values in zip(same, keys, strict=True):
            result[number] = replace(rows[number], apart={name: values.get(name) for name in names})
    return result


def changes_task(key: str) -> bool:
    """Return whether a key changes the data or the model, so that losses are not comparable."""
    return f"{key}.".startswith(("data.", "model.")) and key not in ONE_TASK


def place(value: JsonValue) -> tuple[int, float, str]:
    """Return a sort key for a value: numbers by size, then texts, then null."""
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, value if isinstance(value, str) else canonical_json(value)


def _split(groups: Iterable[Sequence[Keys]], names: Sequence[str]) -> list[list[Keys]]:
    """Return the groups of experiments, each split by the values of the keys `names`."""
    parts: dict[tuple[int, str], list[Keys]] = {}
    for number, group in enumerate(groups):
        for keys in group:
            values = canonical_json([keys.get(name) for name in names])
            parts.setdefault((number, values), []).append(keys)
    return list(parts.values())


def _turn(key: str, swept: Sequence[str]) -> tuple[int, int, str]:
    # A tag is made of other keys, and versions count only where no setting differs.
    late = 3 if key == "tag" or key.startswith("environment.") else 2
    for turn, names in ((0, FIRST_KEYS), (1, swept), (4, LAST_KEYS)):
        if key in names:
            return turn, names.index(key), key
    return late, 0, key


def _device(row: ExperimentRuns) -> str | None:
    """Return the name of the used device, or else of the planned one; for a CPU, its processor."""
    runs, experiment = list(row.counted.values()), row.planned.experiment
    if used := next(filter(None, map(device_model, runs)), None):
        return used
    if experiment.scenario.resources.device == "cpu":
        return next((run.machine.processor for run in runs if run.machine), "") or "cpu"
    environment = experiment.identity.get("environment")
    planned = environment.get("devices") if isinstance(environment, Mapping) else None
    return str(planned[0]) if isinstance(planned, list) and planned else None


def _environment(row: ExperimentRuns) -> JsonValue:
    """Return the environment settings in an experiment's id, with plugin versions by name."""
    environment = row.planned.experiment.identity.get("environment")
    if not isinstance(environment, dict):
        return environment
    listed, prints = environment.get("plugins"), environment.get("fingerprints")
    plugins = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
    prints = prints if isinstance(prints, dict) else {}
    return {
        **environment,
        "plugins": {str(p.get("name")): p.get("version") for p in plugins},
        "fingerprints": {name: canonical_json(value) for name, value in prints.items()},
    }
