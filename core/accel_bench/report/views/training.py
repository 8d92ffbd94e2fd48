"""Table cells that compare a stack's loss, update or output with the baseline's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.wording import WITHIN, count, size
from accel_bench.report.table import Column


def verdict_column(what: str, compared: Callable[[Any], Any] = lambda row: row) -> Column:
    """Return a column of verdicts on `what`: the `loss`, the `update` or the `output`.

    `compared` returns for a row an object with the fields of a `TrainingComparison`, or None.
    """

    def cell(row: Any) -> tuple[str, ...] | None:
        comparison = compared(row)
        if comparison is None:
            return None
        word, apart, allowed = (
            getattr(comparison, f"{what}_{name}") for name in ("word", "difference", "tolerance")
        )
        estimated = what == "update" and not comparison.update_exact
        return verdict_parts(word, apart, allowed, estimated)

    return Column(what, cell, form=tuple, kind="word")


def verdict_parts(
    word: str, difference: float | None, tolerance: float | None, estimated: bool = False
) -> tuple[str, ...]:
    """Return a cell's parts: the verdict's word, the difference and its limit, or the word alone.
    An example is `equivalent`, `0.02 %,`, `limit 0.1 %`; a difference estimated by sketches has
    `~`."""
    _, within, who = word.partition(WITHIN)
    # `by design` fits a narrow page, and so do two lines.
    words = (within, who.strip()) if within else (word.removeprefix("different "),)
    exact = word == "bitwise equal" or difference == tolerance == 0
    if exact or difference is None or tolerance is None:
        return words
    apart, allowed = (_short(100 * share) for share in (difference, tolerance))
    about = "~" if estimated and difference else ""
    return (*words, f"{about}{apart} %,", f"limit {allowed} %")


def update_cost_text(row: ExperimentSummary) -> str:
    """Return as text the seconds and bytes spent on comparing a row's update, and whether the
    distance is exact or estimated; an empty text if the update was not compared."""
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
    if 0 < number < 0.01:
        return "<0.01"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
