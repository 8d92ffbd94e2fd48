"""On which machines a session was repeated by its bundle, and what each found of a stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.reproduction import (
    ReproductionVerdict,
    reproduce_stacks,
    summarize_results,
)
from accel_bench.analysis.wording import count
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import Result

VERDICTS: tuple[ReproductionVerdict, ...] = ("reproduced", "cannot tell", "not reproduced")
"""Verdicts in the order in which they are shown."""


class Repetition(NamedTuple):
    """The newest repetition of a session on a machine."""

    results: Sequence[Result]
    """Its runs."""

    same_machine: bool
    """True if it ran where the repeated session did."""


class StackRepetition(NamedTuple):
    """What one repetition found of a stack at a sweep point."""

    verdict: ReproductionVerdict
    same_machine: bool


def row_key(stack: str, sweep: Mapping[str, JsonValue]) -> tuple[str, str]:
    """Return what tells a row of a session from its others."""
    return stack, canonical_json(dict(sweep))


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
