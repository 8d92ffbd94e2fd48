"""Printed table of `accel-bench judge`."""

from __future__ import annotations

from accel_bench.analysis.wording import (
    JUDGED,
    rate_interval,
    ratio,
    ratio_interval,
    significant,
)
from accel_bench.report.table import Column, Report, Section, Table, columns_of, reader
from accel_bench.report.views.run_table import WIDTH
from accel_bench_judge.document import JudgedStep, JudgeReport


def judged_report(report: JudgeReport) -> Report:
    """Return a printable report with a row for each file, and the reasons why files are refused."""
    notes = [f"{step.step}: {reason}" for step in report.steps for reason in _reasons(step)]
    section = Section(
        title=f"Steps against {report.reference}",
        tables=[Table(COLUMNS, report.steps)],
        notes=[*notes, *report.notices],
    )
    return Report([section], report, Table(columns_of(JudgedStep), report.steps), WIDTH)


def _reasons(step: JudgedStep) -> list[str]:
    if step.refused:
        return list(step.reasons)
    gaps = f"on this kernel the step's process could {', '.join(step.unconfined)}"
    return [*([gaps] if step.unconfined else []), *filter(None, [step.verdict_reason])]


def _verdict(step: JudgedStep) -> str:
    if step.refused:
        status = step.status.value
        return {"invalid": "refused", "degraded": "failed"}.get(status, status)
    return "reference" if step.is_reference else step.verdict_word


def _update(step: JudgedStep) -> tuple[str, str] | None:
    if step.distance is None or step.allowed is None:
        return None
    apart = f"{significant(step.distance, 2)} of {significant(step.allowed, 2)}"
    return (step.update, "") if step.update == "bitwise equal" else (step.update, apart)


def _work(step: JudgedStep) -> float | None:
    return step.flops / step.flops_of_reference if step.flops and step.flops_of_reference else None


COLUMNS = (
    Column("step", reader("step"), kind="name"),
    Column("speed", reader("steps_per_second"), unit="steps/s", kind="number", form=rate_interval),
    Column("times as fast", reader("ratio"), unit=JUDGED, kind="number", form=ratio_interval),
    Column("FLOPs", _work, unit="times", kind="number", form=ratio),
    Column("update", _update, unit="of what is allowed", kind="word"),
    Column("verdict", _verdict, kind="word"),
)
"""Columns of the printed table of judged steps."""
