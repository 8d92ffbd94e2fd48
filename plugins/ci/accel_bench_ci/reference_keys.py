"""Keys of rows in a comparison of two sets of runs, so that no row mixes devices or settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from accel_bench.analysis.aggregate import PlannedSummary, collect_runs
from accel_bench.analysis.tables.experiment_keys import WITHOUT_EFFECT, Keys, keys_of, telling_apart
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.scenario.draft import look_up
from accel_bench_ci.series import planned_devices

DEFAULT_KEYS = ("scenario", "stack", "model.id", "sweep", "device", "world_size")
"""Columns of which a row's key consists by default."""

OPEN_KEYS = ("device", "world_size")
"""Key columns that failed or imported runs may lack."""

NO_SETTINGS = (*WITHOUT_EFFECT, "environment", "provenance", "stack", "device")
"""Prefixes of settings, such as versions, that may differ among the runs of a row."""


Sides: TypeAlias = tuple[list[Result], list[Result]]
"""Runs of one row: the reference's runs, and the current runs."""


def rows_of(
    reference: Iterable[Result],
    current: Iterable[Result],
    names: Sequence[str],
    aliases: Mapping[str, str],
) -> dict[str, Sides]:
    """Return the runs of each row by its key as canonical JSON, rows with current runs first.

    `names` are the key columns, `aliases` map old names in the reference to new ones. A row whose
    runs in one set differ in settings is split by these settings.
    """
    keyed = [(_key(run, names, {}), run, False) for run in current]
    keyed += [(_key(run, names, aliases), run, True) for run in reference]
    _fill(keyed, [name for name in OPEN_KEYS if name in names])
    rows: dict[str, Sides] = {}
    for key, run, before in keyed:
        rows.setdefault(canonical_json(key), ([], []))[0 if before else 1].append(run)
    first = {canonical_json(key): key for key, _, _ in keyed}
    split: dict[str, Sides] = {}
    for text, sides in rows.items():
        split |= _split(first[text], sides, aliases)
    return split


def _key(run: Result, names: Sequence[str], aliases: Mapping[str, str]) -> Keys:
    return {name: _renamed(_key_value(run, name), aliases) for name in names}


def _key_value(result: Result, name: str) -> JsonValue:
    """Return a run's value for the key column `name`: a property of the run, or a dotted setting.

    Raises StoreError for an unknown column.
    """
    experiment = result.experiment
    if name in ("sweep", "tag"):
        value: JsonValue = getattr(experiment, name)
        return value
    if name in ("scenario", "stack"):
        return str(getattr(experiment, name).name)
    if name == "device":
        return _device(result)
    if name == "world_size":
        stated = not result.imported or "resources.devices" in result.provenance.stated
        return experiment.scenario.world_size if stated else None
    there, value = look_up(experiment.scenario.model_dump(mode="json"), name)
    if not there:
        raise StoreError(
            f"--key {name}: no column of that name; write scenario, stack, sweep, tag, device, "
            "world_size or the dotted key of a setting, such as train.micro_batch_size"
        )
    return value


def _device(result: Result) -> str | None:
    """Return the name of the device that a run used or was planned for, or None if unknown."""
    used = next((rank.device for rank in result.ranks if rank.device), None)
    if used is not None:
        return used.name or used.type
    planned = planned_devices(result.experiment)
    return planned[0] if planned else result.provenance.machine or None


def _renamed(value: JsonValue, aliases: Mapping[str, str]) -> JsonValue:
    if isinstance(value, dict):
        return {key: _renamed(inner, aliases) for key, inner in value.items()}
    return aliases.get(value, value) if isinstance(value, str) else value


def _fill(keyed: Sequence[tuple[Keys, Result, bool]], names: Sequence[str]) -> None:
    """Fill in runs' missing devices or world sizes in place, from runs with otherwise equal keys.

    A missing value stays missing if these runs have several values. `keyed` has the keys of each
    run, and `names` the columns to fill.
    """
    for name in names:
        known: dict[str, dict[str, JsonValue]] = {}
        for key, _, _ in keyed:
            if key[name] is not None:
                values = known.setdefault(_others(key), {})
                values[canonical_json(key[name])] = key[name]
        for key, _, _ in keyed:
            values = known.get(_others(key), {})
            if key[name] is None and len(values) == 1:
                key[name] = next(iter(values.values()))


def _others(key: Keys) -> str:
    return canonical_json({name: value for name, value in key.items() if name not in OPEN_KEYS})


def _split(key: Keys, sides: Sides, aliases: Mapping[str, str]) -> dict[str, Sides]:
    """Return the rows of one key, split by the settings in which the runs of one set differ.

    `sides` are the key's runs in both sets, `aliases` new names by old names of the reference.
    """
    settings = [dict(_settings(runs)) for runs in sides]
    added: list[str] = []
    for own in settings:
        distinct = list({canonical_json(own_keys): own_keys for own_keys in own.values()}.values())
        added += [name for name in telling_apart(distinct, added) if name not in added]
    rows: dict[str, Sides] = {}
    for side in (1, 0):
        names = aliases if side == 0 else {}
        for run in sides[side]:
            known = settings[side][run.experiment.id]
            values = {name: _renamed(known.get(name), names) for name in added}
            row = rows.setdefault(canonical_json({**key, **values}), ([], []))
            row[side].append(run)
    return rows


def _settings(runs: Sequence[Result]) -> Iterator[tuple[str, Keys]]:
    """Yield each experiment's id and settings by dotted key, without those in `NO_SETTINGS`."""
    for experiment in {run.experiment.id: run.experiment for run in runs}.values():
        row = collect_runs(PlannedSummary(experiment=experiment), runs, 0)
        ignored = tuple(f"{name}." for name in NO_SETTINGS)
        keys = keys_of(row).items()
        yield (
            experiment.id,
            {key: value for key, value in keys if not f"{key}.".startswith(ignored)},
        )
