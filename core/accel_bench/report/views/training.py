"""Cells that compare a stack's training with the baseline's: a word, and the distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.wording import WITHIN, count, size
from accel_bench.report.table import Column


class TrainingVerdict(NamedTuple):
    """Verdict on a stack's training beside the baseline's, with the distance behind it."""

    word: str
    difference: float | None
    tolerance: float | None

    estimated: bool = False
    """True if sketches estimate the difference."""


def verdict_column(what: str, compared: Callable[[Any], Any] = lambda row: row) -> Column:
    """Return a column of the verdicts on the `loss`, the `update` or the `output`.

    `compared` reads from a row an object with the fields of a `TrainingComparison`, or null.
    """

    def cell(row: Any) -> TrainingVerdict | None:
        found = compared(row)
        if found is None:
            return None
        estimated = what == "update" and not found.update_exact
        word, apart, allowed = (
            getattr(found, f"{what}_{name}") for name in ("word", "difference", "tolerance")
        )
        return TrainingVerdict(word, apart, allowed, estimated)

    return Column(what, cell, form=verdict_parts, kind="word")


def verdict_parts(verdict: TrainingVerdict) -> tuple[str, ...]:
    """Return `equivalent`, `0.02 %,` and `limit 0.1 %`; the word alone if nothing was compared.

    A distance estimated by sketches is `~0.02 %,`.
    """
    _, within, who = verdict.word.partition(WITHIN)
    # `by design` fits a narrow page, and so do two lines.
    words = (within, who.strip()) if within else (verdict.word.removeprefix("different "),)
    if verdict.difference is None or verdict.tolerance is None or verdict.word == "bitwise equal":
        return words
    apart, allowed = (_short(100 * one) for one in (verdict.difference, verdict.tolerance))
    about = "~" if verdict.estimated and verdict.difference else ""
    return (*words, f"{about}{apart} %,", f"limit {allowed} %")


def update_cost_text(row: ExperimentSummary) -> str:
    """Return the cost of the update verdict, and whether it is exact."""
    cost = row.update_cost
    if cost is None:
        return ""
    sketches = f"{count(cost.trained_tensors, 'tensor')} in {cost.sketch_bytes:,} bytes"
    text = f"update read in {cost.seconds:.2g} s outside the windows: sketches of {sketches}"
    if cost.kept_bytes:
        text += f", the whole change in a file of {size(cost.kept_bytes)}"
    elif cost.kept_reason:
        text += f", no file of the whole change ({cost.kept_reason})"
    if row.update_difference is None:
        return text
    how = "exact" if row.update_exact else "estimated from sketches, to about 25 %"
    return f"{text}; its distance is {how}"


def _short(number: float) -> str:
    """Return a number in few characters: `0`, `<0.01`, `0.052`, `150`."""
    if 0 < number < 0.01:
        return "<0.01"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
