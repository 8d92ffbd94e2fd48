"""Runs as flat rows: what `results list` shows and what `results export` writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from accel_bench.analysis.checks.audit import with_audit
from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.result import Metric, Result
from accel_bench.scenario.experiment import canonical_json
from accel_bench.store.database import Row, Store

Cells = dict[str, Any]
"""A flat row by column name: texts, numbers and None."""

LIST_COLUMNS = (
    "run_id",
    "experiment_id",
    "scenario",
    "stack",
    "sweep",
    "round",
    "attempt",
    "status",
    "tokens_per_second",
    "started_at",
)
"""Columns of `results list`."""

_FORMULA = ("=", "+", "-", "@", "\t")


def list_runs(store: Store) -> list[Cells]:
    """One row of LIST_COLUMNS for each run, corrupt ones included. Raises StoreError."""
    results = {result.run_id: result for result in store.results()}
    return [_listed(row, results.get(row.run_id)) for row in store.rows()]


def flat_run(result: Result) -> Cells:
    """One run on one row; names say unit and scope, absent numbers are None.

    A run that the self-audit finds broken is `degraded`, with the reason.
    """
    result = with_audit(result)
    scenario, speed = result.experiment.scenario, run_throughput(result)
    device = result.ranks[0].device if result.ranks else {}
    return {
        "run_id": result.run_id,
        "session": result.session,
        "experiment_id": result.experiment.id,
        "scenario": scenario.name,
        "stack": result.experiment.stack.name,
        "sweep": canonical_json(result.experiment.sweep),
        "round": result.round,
        "position": result.position,
        "attempt": result.attempt,
        "status": result.status.value,
        "reasons": "; ".join(result.reasons),
        "phase": result.phase,
        "started_at": result.started_at,
        "seconds": result.seconds,
        "model": scenario.model.id,
        "dtype": scenario.model.dtype,
        "sequence_length": scenario.data.sequence_length,
        "global_batch_size": scenario.train.global_batch_size,
        "world_size": scenario.world_size,
        "device": str(device.get("name") or device.get("type") or ""),
        "host": str(result.machine.get("host", "")),
        **_flat_speed(speed),
        **_flat_metrics(result),
    }


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Rows as CSV with a header; the columns are those given, or all in order of appearance.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    names = list(columns) or list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, names))
    writer.writerows([_harmless(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def markdown_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as a Markdown table; pipes, line ends and markup in cells are text."""
    cells = [[_markdown(row[name]) for name in columns] for row in rows]
    lines = [list(columns), ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: Any) -> str:
    """A cell as people read it: numbers with one decimal, a sweep point as `key=value`."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return str(value)


def differences(left: Any, right: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both values; None where one side lacks the key."""
    if canonical_json(left) == canonical_json(right):
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        keys = [*left, *(key for key in right if key not in left)]
        found = (
            differences(left.get(key), right.get(key), f"{path}.{key}" if path else key)
            for key in keys
        )
        return [difference for group in found for difference in group]
    return [(path, left, right)]


def _listed(row: Row, result: Result | None) -> Cells:
    """A listing's row with its speed, where there is one, and what the self-audit makes of it."""
    cells = {**row.model_dump(include=set(LIST_COLUMNS)), "tokens_per_second": None}
    if result is not None and not row.corrupt:
        speed = run_throughput(result)
        cells["tokens_per_second"] = speed.tokens_per_second if speed else None
        cells["status"] = with_audit(result).status.value
    return {name: cells[name] for name in LIST_COLUMNS}


def _flat_speed(speed: RunThroughput | None) -> Cells:
    """Speed and losses of a window; `real_tokens` are those of all devices."""
    if speed is None:
        return {}
    losses = [loss for loss in speed.losses if loss is not None]
    return {
        "tokens_per_second": speed.tokens_per_second,
        "tokens_per_second_per_device": speed.tokens_per_second_per_device,
        "seconds_per_token": speed.seconds_per_token,
        "median_step_seconds": median(speed.step_seconds) if speed.step_seconds else None,
        "steps": len(speed.step_seconds),
        "real_tokens": speed.real_tokens,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
    }


def _flat_metrics(result: Result) -> Cells:
    """Metrics of all ranks; a metric that covers more than a rank stands there once."""
    return {
        _metric_name(metric, rank.rank): metric.value
        for rank in reversed(result.ranks)
        for metric in rank.metrics
    }


def _metric_name(metric: Metric, rank: int) -> str:
    """Name, kind, unit and rank, as far as they say something."""
    parts = [metric.name, metric.kind.replace(" ", "_")]
    if metric.unit != "1" and metric.unit not in metric.name:
        parts.append(metric.unit)
    if metric.scope != "global":
        parts.append(f"rank{rank}")
    return "_".join(part for part in parts if part)


def _harmless(value: Any) -> Any:
    """A CSV cell that no spreadsheet runs, with one kind of line end; numbers stay numbers."""
    if isinstance(value, dict | list | tuple):
        value = canonical_json(value)
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) else text


def _markdown(value: Any) -> str:
    """A Markdown cell on one line, in which nothing is markup."""
    text = " ".join(shown(value).splitlines())
    return "".join(f"\\{char}" if char in "\\|`*_[]<>" else char for char in text)
