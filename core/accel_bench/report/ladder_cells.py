"""An ablation ladder for reading: a row for each item, and what the columns mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel_bench.analysis.schema import LadderFigure, LadderStep, MemoryChange, Summary
from accel_bench.analysis.wording import ratio, settings
from accel_bench.report.cells import EMPTY, interval_cell, plain

HEADERS = (
    "ratio to\nbaseline",
    "adds\n[95 %]",
    "adds\nMiB",
    "\nloss",
    "left out\n[95 %]",
    "left out\nMiB",
)
"""Headers after that of the rung."""

MEANING = (
    "adds, loss: against the rung before; left out: everything without the item against "
    "everything; estimates from pairs, no verdicts"
)
"""What stands under the rows."""


def ladders(summary: Summary) -> Mapping[str, Sequence[LadderStep]]:
    """Steps by a title that names their sweep point, where something is swept."""
    found: dict[str, list[LadderStep]] = {}
    for step in summary.ladder:
        at = f" ({settings(step.sweep)})" if step.sweep else ""
        found.setdefault(plain(f"ladder of {summary.scenario}{at}"), []).append(step)
    return found


def rung_name(step: LadderStep) -> str:
    """The rung's stack; the item where there is no such stack."""
    return plain(step.adds.stack or f"{step.number}+{step.item}")


def step_cells(step: LadderStep) -> list[str]:
    """One row, in the order of the headers."""
    return [
        ratio(step.ratio.median) if step.ratio else EMPTY,
        interval_cell(step.adds.ratio),
        memory_change(step.adds.memory),
        step.adds.loss_verdict if step.adds.ratio else EMPTY,
        interval_cell(step.left_out.ratio),
        memory_change(step.left_out.memory),
    ]


def memory_change(change: MemoryChange | None) -> str:
    """`-61.2 ±0.5`, in MiB; without the ± where it would say 0."""
    if change is None:
        return EMPTY
    mean = change.bytes / 2**20
    digits = 0 if abs(mean) >= 100 else 1
    rounded = round(mean, digits)
    text = f"{rounded:+,.{digits}f}" if rounded else "0.0"
    half = 0.0 if change.high is None else round((change.high - change.bytes) / 2**20, digits)
    return f"{text} ±{half:,.{digits}f}" if half else text


def ladder_notes(steps: Sequence[LadderStep]) -> list[str]:
    """What the columns mean, and every figure that is missing or has another loss."""
    names = (note for step in steps for note in _notes(step))
    return [MEANING, *dict.fromkeys(names)]


def _notes(step: LadderStep) -> list[str]:
    """Reasons of one item's figures."""
    figures = (f"{step.item} added", step.adds), (f"{step.item} left out", step.left_out)
    return [plain(f"{name}: {why}") for name, figure in figures if (why := _why(figure))]


def _why(figure: LadderFigure) -> str:
    """What must be said of a figure; empty for an ordinary one."""
    if figure.reason:
        return figure.reason
    if figure.loss_verdict == "equivalent":
        return ""
    return f"loss {figure.loss_verdict}: {figure.loss_reason}"
