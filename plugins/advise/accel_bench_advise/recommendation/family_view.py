"""Recommendations for the models of a family: what `recommend --family` prints."""

from __future__ import annotations

from accel_bench.analysis.wording import (
    grouped_by_reason,
    join_names,
    label,
    milliseconds,
    percent,
    plain_value,
    rate_interval,
    ratio_interval,
    size,
    with_spread,
)
from accel_bench.report.table import Column, Report, Section, Table, interval_paths, paths, reader
from accel_bench_advise.recommendation.family import FamilyRecommendation, FamilyRow

NAMED = 6
"""Models without stored runs that a note names."""


def family_report(document: FamilyRecommendation) -> Report:
    """Return the answer, a row for each model, mode and device, and what is not stored."""
    rows = document.rows
    used = [one for one in COLUMNS if one.kind == "name" or any(map(one.cell, rows))]
    section = Section(
        answer=document.answer,
        tables=[Table(used, rows)] if rows else [],
        notes=[*_settings(document), *_unanswered(document), *_notes(document)],
    )
    return Report([section], document, Table(FLAT, rows))


def _settings(document: FamilyRecommendation) -> list[str]:
    """Return with which settings each recommendation was measured."""
    found = []
    for row in document.rows:
        if row.recommended:
            values = ", ".join(f"{key}={plain_value(one)}" for key, one in row.settings.items())
            found.append((f"{row.model}, {row.mode}", f"measured with {values}"))
    return grouped_by_reason(list(dict.fromkeys(found)))


def _unanswered(document: FamilyRecommendation) -> list[str]:
    reasons = [(f"{row.model}, {row.mode} on {row.device}", row.why) for row in document.rows]
    return grouped_by_reason([(name, why) for name, why in reasons if why])


def _notes(document: FamilyRecommendation) -> list[str]:
    notes = [f"no evidence: {text}" for text in document.left_out]
    if document.not_stored:
        names = join_names(list(document.not_stored), most=NAMED)
        device = document.gpu or "GPU"
        notes.append(
            f"no runs are stored of {names}: `accel-bench run SCENARIO --family "
            f"{document.family}` measures, `accel-bench recommend --gpu {device}` estimates what "
            "fits"
        )
    return notes


def _use(row: FamilyRow) -> str | None:
    one = row.recommended
    return label(one) if one else None


def _memory(row: FamilyRow) -> str | None:
    memory = row.recommended.memory if row.recommended else None
    if memory is None:
        return None
    left = "" if memory.headroom is None else f" ({percent(max(0.0, memory.headroom))} left)"
    return f"{size(memory.peak_bytes)} {memory.kind}{left}"


COLUMNS = (
    Column("model", reader("model"), kind="name"),
    Column("mode", reader("mode"), kind="name"),
    Column("device", reader("device"), kind="name"),
    Column("use", _use, kind="name"),
    Column("certainty", reader("certainty"), "how sure", kind="word"),
    Column("speed", reader("recommended.tokens_per_second"), "", "tokens/s", rate_interval,
           kind="number"),
    Column("latency", reader("recommended.request_seconds"), "median request", "ms",
           lambda value: with_spread(value, milliseconds), kind="number"),
    Column("ratio", reader("recommended.ratio"), "times as fast", "as the baseline",
           ratio_interval, kind="number"),
    Column("memory", _memory, kind="number"),
    Column("runner_up", lambda row: row.runner_up or None, "runner-up", kind="name"),
)  # fmt: skip
"""Columns for people."""

FLAT = (
    *paths("", "model mode device certainty fastest"),
    *paths("recommended", "stack sweep tag changes"),
    *interval_paths("recommended", "tokens_per_second"),
    *interval_paths("recommended", "request_seconds"),
    *interval_paths("recommended", "ratio"),
    *paths("recommended", "loss update output start_seconds"),
    *paths("recommended.memory", "peak_bytes device_bytes headroom"),
    *paths("", "runner_up settings why"),
    *paths("recommended.evidence", "experiment_id run_ids origin"),
)
"""Columns of the CSV."""
