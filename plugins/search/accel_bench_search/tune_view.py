"""The trials of a study, the best of them and what it showed beside the baseline."""

from __future__ import annotations

from collections import Counter

from accel_bench.analysis.wording import (
    count,
    grouped_by_reason,
    milliseconds,
    plain_value,
    rate,
    significant,
    size,
)
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    paths,
    reader,
)
from accel_bench_search.tune_report import TuneReport, TuneTrial


def tune_view(report: TuneReport) -> Report:
    """Return the answer, then the baseline and each trial."""
    rows = [report.baseline, *report.trials]
    reasons = [(_name(row), f"{row.outcome}: {row.reason}") for row in rows if row.reason]
    section = Section(
        title=report.scenario,
        answer=report.answer,
        tables=[Table(_columns(report), rows)],
        notes=[
            _counted(report),
            *grouped_by_reason(reasons),
            f"study {report.study}; the same command goes on with it, --trials N adds to it",
        ],
    )
    return Report([section], report, Table(FLAT, rows))


def _columns(report: TuneReport) -> list[Column]:
    keys = dict.fromkeys(key for row in report.trials for key in row.parameters)
    goal = report.objective.words
    form = milliseconds if report.objective.goal == "request_seconds" else _four_digits
    unit = f"{goal}, ms" if form is milliseconds else goal
    value = Column(goal, reader("value"), "objective", unit, form, "number")
    return [
        Column("trial", _name, kind="name"),
        *(_parameter(key) for key in keys),
        *([value] if report.objective.goal != "tokens_per_second" else []),
        Column("speed", reader("tokens_per_second"), "", "tokens/s", rate, "number"),
        Column("memory", reader("peak_memory_bytes"), "", "peak", size, "number", 1),
        Column("last loss", reader("last_loss"), form=_four_digits, kind="number", rank=2),
        Column("outcome", reader("outcome"), kind="word"),
    ]


def _parameter(key: str) -> Column:
    title = key.rpartition(".")[2].replace("_", " ")

    def cell(row: TuneTrial) -> object:
        return row.parameters.get(key)

    return Column(key, cell, title, form=_value, kind="name")


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain_value(value)  # type: ignore[arg-type]


def _four_digits(value: float) -> str:
    return significant(value, 4)


def _name(row: TuneTrial) -> str:
    return "baseline" if row.number is None else str(row.number)


def _counted(report: TuneReport) -> str:
    """Return `20 trials: 14 ok, 4 out of memory, 2 not run`."""
    counts = Counter(one.outcome for one in report.trials).most_common()
    listed = ", ".join(f"{number} {outcome}" for outcome, number in counts)
    return f"{count(len(report.trials), 'trial')}: {listed}; speeds are of one run each"


FLAT = (
    *paths("", "number parameters outcome value reason status run_id tokens_per_second"),
    *paths("", "peak_memory_bytes last_loss"),
)
"""Columns of the CSV."""
