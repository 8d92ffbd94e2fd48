"""What those found who repeated a session by its bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from accel_bench.analysis.reproduction import (
    ReproductionVerdict,
    reproduce_stacks,
    row_key,
    summarize_results,
)
from accel_bench.analysis.wording import count
from accel_bench.result import Result
from accel_bench.store.repetitions import Repetition

VERDICTS: tuple[ReproductionVerdict, ...] = ("reproduced", "cannot tell", "not reproduced")
"""Verdicts in the order in which they are shown."""


class StackRepetition(NamedTuple):
    """What one repetition found of a stack at a sweep point."""

    verdict: ReproductionVerdict
    same_machine: bool


def judge_repetitions(
    results: Sequence[Result], repetitions: Sequence[Repetition], baseline: str
) -> dict[tuple[str, str], list[StackRepetition]]:
    """Compare a session's runs with each repetition; return verdicts by `row_key`.

    The baseline has none: it is what ratios are to.
    """
    found: dict[tuple[str, str], list[StackRepetition]] = {}
    for one in repetitions:
        here = summarize_results(one.results, baseline)
        for row in reproduce_stacks(results, here, one.results):
            if row.verdict is not None:
                judged = StackRepetition(row.verdict, one.same_machine)
                found.setdefault(row_key(row.stack, row.sweep), []).append(judged)
    return found


def repetition_badge(repetitions: Sequence[StackRepetition]) -> str:
    """Return `reproduced on 2 machines`, or `on 1 of 3 machines` where not all found the same."""
    good = sum(one.verdict == "reproduced" for one in repetitions)
    of = "" if good == len(repetitions) else f"{good} of "
    return f"reproduced on {of}{count(len(repetitions), 'machine')}"


def repetition_text(repetitions: Sequence[StackRepetition]) -> str:
    """Return what the newest repetition of each machine found, and whether one is the session's."""
    counts = Counter(one.verdict for one in repetitions)
    verdicts = ", ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one])
    where = ", the session's own among them" if any(one.same_machine for one in repetitions) else ""
    machines = count(len(repetitions), "machine")
    return f"its bundle was repeated on {machines}{where}; the newest of each: {verdicts}"
