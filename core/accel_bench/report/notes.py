"""What stands under a table: what each stack is, and each reason once with its rows."""

from __future__ import annotations

from accel_bench.analysis.document import ExperimentSummary, Summary
from accel_bench.analysis.wording import label, listing
from accel_bench.report.cells import plain


def stack_notes(summary: Summary) -> dict[str, str]:
    """What each stack changes, by its name."""
    return {plain(row.stack): plain(row.differs) for row in summary.experiments}


def reason_notes(summary: Summary) -> list[str]:
    """`names: reason`; a reason that holds for many rows is said once."""
    rows_of: dict[str, list[str]] = {}
    for row in summary.experiments:
        for reason in _reasons(row, summary.baseline):
            rows_of.setdefault(plain(reason), []).append(plain(label(row.stack, row.sweep)))
    return [f"{listing(names)}: {reason}" for reason, names in rows_of.items()]


def memory_note(summary: Summary) -> str:
    """How the peak memory was measured; empty when nothing says so."""
    rows = [row for row in summary.experiments if row.peak_memory_kind]
    kinds = dict.fromkeys(plain(str(row.peak_memory_kind)) for row in rows)
    return f"peak memory of the device that needed most: {', '.join(kinds)}" if kinds else ""


def _reasons(row: ExperimentSummary, baseline: str) -> list[str]:
    """Why a row is not simply ok, and why a verdict is missing."""
    reasons = list(row.reasons)
    if row.stack == baseline or not row.status.completed:
        return reasons
    if row.verdict_reason:
        reasons.append(f"speed not tested: {row.verdict_reason}")
    if row.loss_reason and row.ratio:
        reasons.append(f"loss {row.loss_verdict}: {row.loss_reason}")
    return reasons
