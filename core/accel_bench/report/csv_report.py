"""The summaries as CSV: one flat row for each experiment, units in the names of columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO

from accel_bench.analysis.schema import ExperimentSummary, LadderFigure, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.scenario.experiment import canonical_json

FORMULA_STARTS = ("=", "+", "-", "@")
"""How a text begins that spreadsheets would run."""


def render_csv(summaries: Sequence[Summary]) -> str:
    """Return a header and one row for each experiment; null is an empty cell."""
    rows = [_row(summary, row) for summary in summaries for row in summary.experiments]
    output = StringIO()
    header = list(rows[0]) if rows else []
    writer = csv.DictWriter(output, fieldnames=header, lineterminator="\n")
    if rows:
        writer.writeheader()
    writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)
    return output.getvalue()


def _row(summary: Summary, row: ExperimentSummary) -> dict[str, str | float | None]:
    """One experiment, flat."""
    step, loss = row.step_seconds, row.loss
    return {
        "schema_version": summary.schema_version,
        "scenario": summary.scenario,
        "baseline": summary.baseline,
        "experiment_id": row.experiment_id,
        "stack": row.stack,
        "sweep": canonical_json(row.sweep),
        "status": row.status.value,
        "reasons": "; ".join(row.reasons),
        "runs": row.runs,
        **interval_columns("tokens_per_second", row.tokens_per_second),
        "tokens_per_second_per_device": row.tokens_per_second_per_device,
        **interval_columns("ratio", row.ratio),
        "ratio_reason": row.ratio_reason,
        "pairs": row.pairs,
        "verdict": row.verdict,
        "verdict_reason": row.verdict_reason,
        "minimum_detectable_effect": row.minimum_detectable_effect,
        "pairs_needed": row.pairs_needed,
        "step_seconds_p50": step.p50 if step else None,
        "step_seconds_p90": step.p90 if step else None,
        "step_seconds_p95": step.p95 if step else None,
        "step_seconds_p99": step.p99 if step else None,
        "step_seconds_spread": step.spread if step else None,
        **_tokens(row),
        **_parts(row),
        **_use(row),
        "peak_memory_bytes": row.peak_memory_bytes,
        "peak_memory_kind": row.peak_memory_kind,
        "loss_first": loss.first if loss else None,
        "loss_last": loss.last if loss else None,
        "loss_verdict": row.loss_verdict,
        "loss_difference": row.loss_difference,
        "loss_tolerance": row.loss_tolerance,
        "loss_reason": row.loss_reason,
        **_ladder(summary, row),
        "devices_used": row.devices_used,
        "differs": row.differs,
        "plugins": "; ".join(f"{p.name} {p.distribution} {p.version}" for p in row.plugins),
    }


def _tokens(row: ExperimentSummary) -> dict[str, float | None]:
    """Tokens of a step over all devices, counted in three ways."""
    counted = row.tokens.per_step_global if row.tokens else None
    kinds = ("processed", "real", "supervised")
    return {f"{kind}_tokens_per_step_global": getattr(counted, kind, None) for kind in kinds}


def _parts(row: ExperimentSummary) -> dict[str, float | None]:
    """Where the time went, once and in each step."""
    once, step = row.start_up, row.phases
    names = ("load_data", "load_model", "first_step", "compile")
    phases = ("data", "forward", "backward", "optimizer")
    return {
        **{f"{name}_seconds": getattr(once, f"{name}_seconds", None) for name in names},
        **{f"step_{name}_seconds": getattr(step, name, None) for name in phases},
    }


def _use(row: ExperimentSummary) -> dict[str, float | None]:
    """Model FLOP/s per device and shares of the peak, under both conventions."""
    used = row.utilization
    figures = {
        "model_flops_per_second": used.model_flops_per_second if used else None,
        "mfu": used.mfu if used else None,
        "hfu": used.hfu if used else None,
    }
    return {
        f"{name}_{convention}": getattr(figure, convention, None)
        for name, figure in figures.items()
        for convention in ("causal", "non_causal")
    }


def _ladder(summary: Summary, row: ExperimentSummary) -> dict[str, str | float | None]:
    """On the row of a rung: what its last item adds, and what leaving that out costs."""
    steps = (s for s in summary.ladder if (s.adds.stack, s.sweep) == (row.stack, row.sweep))
    step = next(steps, None)
    return {
        "ladder_item": step.item if step else None,
        **_ladder_figure("ladder_adds", step.adds if step else None),
        **_ladder_figure("ladder_left_out", step.left_out if step else None),
    }


def _ladder_figure(name: str, figure: LadderFigure | None) -> dict[str, str | float | None]:
    """One stack against its neighbour; empty cells where there is none."""
    memory = figure.memory if figure else None
    return {
        f"{name}_stack": figure.stack if figure else None,
        f"{name}_against": figure.against if figure else None,
        f"{name}_pairs": figure.pairs if figure else None,
        **interval_columns(f"{name}_ratio", figure.ratio if figure else None),
        f"{name}_memory_bytes": memory.bytes if memory else None,
        f"{name}_memory_bytes_low": memory.low if memory else None,
        f"{name}_memory_bytes_high": memory.high if memory else None,
        f"{name}_loss_verdict": figure.loss_verdict if figure else None,
        f"{name}_loss_difference": figure.loss_difference if figure else None,
        f"{name}_reason": (figure.reason or figure.loss_reason) if figure else None,
    }


def interval_columns(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Three columns; null where there is nothing."""
    return {
        f"{name}_{end}": getattr(interval, end) if interval else None
        for end in ("median", "low", "high")
    }


def cell(value: str | float | None) -> str | float | None:
    """Mark text that a spreadsheet would take for a formula, also behind white space."""
    if isinstance(value, str) and value.lstrip().startswith(FORMULA_STARTS):
        return "'" + value
    return value
