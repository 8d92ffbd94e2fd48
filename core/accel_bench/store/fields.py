"""Derived columns of a run: settings, the effective configuration and figures.

They are computed from a result when it is stored. The result with its samples is authoritative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from accel_bench.analysis.checks.audit import Broken, audit, marked_degraded
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.metrics.utilization import peak_flops_of, utilization
from accel_bench.analysis.tables.listing import flat_metrics, flat_speed
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import RankResult, Result
from accel_bench.scenario.draft import dotted, look_up, set_path
from accel_bench.scenario.uses import TOKENS
from accel_bench.store.schema import (
    COLUMN_OF,
    COUNTS,
    DERIVED,
    FORMAT,
    IMPORTED,
    MAXIMUM_COLUMN_BYTES,
    ORIGIN,
    SECTIONS,
    DerivedColumn,
)

FIGURES_VERSION = 1
"""Version of the derived columns; `results check` audits runs of another version anew."""

MAXIMUM_INTEGER = 2**63 - 1
"""Largest integer of a column."""

MAXIMUM_LETTERS = 10_000
"""Largest length of a derived text in characters; the result has the whole text."""


def derived_columns(result: Result) -> dict[str, Any]:
    """Return the values of a result's derived columns, by column name; null if unknown.

    An imported result gets the status `imported`, which keeps it out of groups' means and of
    conditions such as `status = ok`. Its figures are in the column `metrics` alone.
    """
    broken = [] if result.imported else audit(result)
    sources = _stated(result) if result.imported else _measured(result, broken)
    stated = {metric.name: metric.value for metric in result.metrics}
    return {
        **{column.column: _fitting(column, _read(sources, column.path)) for column in DERIVED},
        "broken": canonical_json([[fault.invariant, fault.figures] for fault in broken]),
        "throughput": _throughput(result),
        "options": _mapping(_options_of(result)),
        "metrics": _mapping(stated if result.imported else flat_metrics(result)),
        "figures_version": FIGURES_VERSION,
    }


def _measured(result: Result, broken: list[Broken]) -> dict[str, Any]:
    """Return the objects that hold a measured run's column values, by their name in columns' paths.
    `broken` are the invariants that the run breaks."""
    audited = marked_degraded(result, broken)
    return {
        "result": result,
        "audited": audited,
        "scenario": result.experiment.scenario,
        "effective": result.ranks[0].effective if result.ranks else None,
        "machine": result.machine,
        "derived": {**_figures(result), "reasons": "; ".join(audited.reasons)},
    }


def _stated(result: Result) -> dict[str, Any]:
    """Return the objects that hold an imported run's column values, by their name in paths."""
    scenario: dict[str, Any] = {}
    settings = result.experiment.scenario.model_dump(mode="json")
    for key in result.provenance.stated:
        set_path(scenario, key.split("."), look_up(settings, key)[1])
    device = result.provenance.machine or None
    return {
        "result": {"seconds": result.seconds or None},
        "audited": {"status": IMPORTED},
        "scenario": scenario,
        "effective": None,
        "machine": None,
        "derived": {"reasons": "; ".join(result.reasons), "device": device},
    }


def _is_stated(key: str, result: Result) -> bool:
    return any(f"{key}.".startswith(f"{prefix}.") for prefix in result.provenance.stated)


def _options_of(result: Result) -> dict[str, Any]:
    """Return the settings that have no column, mostly plugin options, by dotted key, and the origin
    of a run that was not measured here."""
    generates = result.experiment.scenario.generates
    sections = {*SECTIONS} - (set() if generates else {"inference"})
    scenario = result.experiment.scenario.model_dump(mode="json", include=sections)
    options = {key: value for key, value in dotted(scenario) if key not in COLUMN_OF}
    if (counts := result.experiment.scenario.counts) != TOKENS:
        options[COUNTS] = counts
    if generates:
        options["mode"] = result.experiment.scenario.mode
    for use in result.experiment.stack.uses:
        options |= dict(dotted({use.use: use.options}))
    if result.imported:
        options = {key: value for key, value in options.items() if _is_stated(key, result)}
        options[FORMAT] = result.provenance.format
    elif (origin := result.provenance.origin) != "measured":
        options[ORIGIN] = origin  # a listing marks a run that was not measured here
    plain = str | int | float
    return {key: value for key, value in options.items() if isinstance(value, plain)}


def _figures(result: Result) -> dict[str, Any]:
    """Return values that are computed from several parts of a result, by column name."""
    experiment, speed = result.experiment, run_throughput(result)
    return {
        **_device(result.ranks[0] if result.ranks else None),
        **flat_speed(speed),
        "tag": experiment.tag,
        "compute_dtype": experiment.scenario.compute_dtype,
        "world_size": experiment.scenario.world_size,
        "peak_memory_bytes": _peak_memory(result),
        "mfu": _mfu(result) if speed else None,
    }


def _throughput(result: Result) -> str | None:
    """Return a run's throughput as JSON text; None if it is unknown, too long, or has NaN."""
    if (speed := run_throughput(result)) is None:
        return None
    try:
        text = canonical_json({field.name: getattr(speed, field.name) for field in fields(speed)})
    except ValueError:
        return None
    return text if len(text) <= MAXIMUM_COLUMN_BYTES else None


def _mapping(values: Mapping[str, Any]) -> str:
    """Return a mapping as JSON text, without values that no database can hold; `{}` if too long."""
    texts = {_text(k): _text(v) if isinstance(v, str) else v for k, v in values.items()}
    stored = canonical_json({key: item for key, item in texts.items() if _storable(item)})
    return stored if len(stored) <= MAXIMUM_COLUMN_BYTES else "{}"


def _read(sources: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of attributes and keys, or None if one of them is missing.
    The path's first name is a key of `sources`; `x[0]` is the first key of the mapping `x`."""
    source, _, rest = path.partition(".")
    value = sources[source]
    for name in rest.split("."):
        key = name.removesuffix("[0]")
        value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        if name != key:
            value = next(iter(value), None) if value else None
    return value


def _fitting(column: DerivedColumn, value: Any) -> Any:
    """Return a value converted to its column's type, or None for a value that does not fit."""
    if value is None:
        return None
    if column.kind is str:
        return _text(getattr(value, "value", value))
    try:
        converted = column.kind(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if _storable(converted) else None


def _storable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= MAXIMUM_INTEGER


def _text(value: Any) -> str:
    """Return a text truncated to MAXIMUM_LETTERS, without NUL and surrogates for PostgreSQL."""
    text = str(value)[:MAXIMUM_LETTERS].replace("\0", "\ufffd")
    return text.encode("utf8", "replace").decode()


def _device(first: RankResult | None) -> dict[str, Any]:
    device = first.device if first else None
    return {"device": device.name or device.type, "device_type": device.type} if device else {}


def _peak_memory(result: Result) -> float | None:
    measured = (metric for rank in result.ranks for metric in rank.metrics)
    peaks = (metric.value for metric in measured if metric.figure == "peak_memory")
    return max((peak for peak in peaks if peak is not None), default=None)


def _mfu(result: Result) -> float | None:
    peak = peak_flops_of(result)
    used = utilization(result, peak) if peak else None
    return used.mfu.causal if used and used.mfu else None
