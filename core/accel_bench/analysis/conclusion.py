"""The one sentence that a table allows: what is known, what is not, and what would settle it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.statistics.comparison import MINIMUM_PAIRS
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import interval_text, label, listing, percent, rate, ratio
from accel_bench.result import Status

SPELT_OUT = 3
"""Rows of one kind that get a clause of their own; the others are counted."""

Clause = Callable[[ExperimentSummary, str], str]


def sentence(summary: Summary) -> str:
    """Say in one sentence what the rows allow one to say, the doubtful first.

    A faster stack with a different loss comes before everything else, then a baseline that failed,
    then the verdicts; what failed or was skipped comes last.
    """
    if all(row.status is Status.SKIPPED for row in summary.experiments):
        clauses = ["nothing was run", *_ended_clauses(summary.experiments)]
    elif not any(row.status.completed for row in summary.experiments):
        clauses = ["no experiment completed", *_ended_clauses(summary.experiments)]
    elif all(row.ratio is None or row.stack == summary.baseline for row in summary.experiments):
        clauses = _uncompared_clauses(summary)
    else:
        clauses = _compared_clauses(summary)
    return "; ".join(clauses) + "."


def _compared_clauses(summary: Summary) -> list[str]:
    """One clause or more for each kind of row that is there."""
    rows = [row for row in summary.experiments if row.stack != summary.baseline and row.ratio]
    rows.sort(key=lambda row: -_ratio(row).median)
    odd = [row for row in rows if row.loss_verdict == "different"]
    fast = [row for row in odd if row.verdict == "faster"]
    even = [row for row in rows if row not in odd]
    doubtful = _spell_out(summary.baseline, fast, _other_loss, "faster with a different loss")
    kinds: list[tuple[list[ExperimentSummary], Clause, str]] = [
        (_of(even, "faster"), _faster, "faster"),
        ([row for row in odd if row not in fast], _other_loss, "different in their loss"),
        (_of(even, "slower"), _slower, "slower"),
        (_of(even, "same"), _same, "equally fast"),
        (_of(even, "inconclusive"), _inconclusive, "not settled"),
    ]
    clauses = [clause for kind in kinds for clause in _spell_out(summary.baseline, *kind)]
    clauses += _too_few_pairs(_of(even, "not tested"), summary.baseline)
    ended = _ended_clauses(_others(summary))
    return [*doubtful, *_failed_baseline(summary), *clauses, *ended]


def _spell_out(
    baseline: str, rows: Sequence[ExperimentSummary], clause: Clause, kind: str
) -> list[str]:
    """A clause for each of the first rows, and a count of the others."""
    clauses = [clause(row, baseline) for row in rows[:SPELT_OUT]]
    more = len(rows) - SPELT_OUT
    return [*clauses, f"{more} more {'is' if more == 1 else 'are'} {kind}"] if more > 0 else clauses


def _other_loss(row: ExperimentSummary, baseline: str) -> str:
    """A speed that was bought with another loss, or that comes with one."""
    speed = _times(row, f"the speed of {baseline}")
    so = f"so that its {speed} is not for the same training"
    verdict = "" if row.verdict in ("faster", "slower") else f" (speed: {row.verdict})"
    return f"the loss of {_name(row)} is different ({row.loss_reason}), {so}{verdict}"


def _faster(row: ExperimentSummary, baseline: str) -> str:
    return f"{_name(row)} is faster than {baseline}: {_times(row)}{_loss(row)}"


def _slower(row: ExperimentSummary, baseline: str) -> str:
    return f"{_name(row)} is slower than {baseline}: {_times(row)}{_loss(row)}"


def _same(row: ExperimentSummary, baseline: str) -> str:
    return f"{_name(row)} is as fast as {baseline}: {_times(row)}{_loss(row)}"


def _inconclusive(row: ExperimentSummary, baseline: str) -> str:
    """Say what these pairs could have seen, and how many more would do."""
    visible = row.minimum_detectable_effect or 0.0
    if row.pairs_needed is None:
        settle = "even 200 pairs would not settle it, so look for what makes the machine noisy"
    else:
        settle = f"about {row.pairs_needed} pairs would settle it (--rounds {row.pairs_needed})"
    return (
        f"it is open whether {_name(row)} is faster than {baseline}: {_times(row)}, "
        f"while {row.pairs} pairs show only effects above {percent(visible)}; {settle}"
    )


def _too_few_pairs(rows: Sequence[ExperimentSummary], baseline: str) -> list[str]:
    """Rows with too few pairs, all in one clause."""
    if not rows:
        return []
    names = listing([f"{_name(row)} ({ratio(_ratio(row).median)} times its speed)" for row in rows])
    fewest = min(row.pairs for row in rows)
    return [
        f"no verdict against {baseline} for {names}: {_count(fewest, 'pair')} of the "
        f"{MINIMUM_PAIRS} that a verdict needs (--rounds {MINIMUM_PAIRS})"
    ]


def _uncompared_clauses(summary: Summary) -> list[str]:
    """Speeds alone, with the reason why they stand alone."""
    rows = [row for row in summary.experiments if row.tokens_per_second and row.status.completed]
    speeds = listing([f"{_name(row)} trains at {_speed(row)}" for row in rows])
    others, failed = _others(summary), _failed_baseline(summary)
    why = [] if failed else ["nothing was compared"]
    if len(others) == len(summary.experiments) and len(others) > 1:
        why = [f"nothing was compared, since the baseline {summary.baseline} was not run"]
    return [*failed, speeds, *why, *_ended_clauses(others)]


def _failed_baseline(summary: Summary) -> list[str]:
    """The baseline, where it has nothing to compare with."""
    rows = [
        row
        for row in summary.experiments
        if row.stack == summary.baseline and not row.status.completed
    ]
    if not rows:
        return []
    ends = listing([f"{_name(row)} {_how([row])}" for row in rows])
    return [f"the baseline {ends}, so that there is no ratio to it"]


def _ended_clauses(rows: Sequence[ExperimentSummary]) -> list[str]:
    """Rows that failed or were skipped, by how they ended."""
    ends: dict[Status, list[ExperimentSummary]] = {}
    for row in rows:
        if not row.status.completed:
            ends.setdefault(row.status, []).append(row)
    return [f"{listing([_name(row) for row in same])} {_how(same)}" for same in ends.values()]


def _others(summary: Summary) -> list[ExperimentSummary]:
    return [row for row in summary.experiments if row.stack != summary.baseline]


def _of(rows: Sequence[ExperimentSummary], verdict: str) -> list[ExperimentSummary]:
    return [row for row in rows if row.verdict == verdict]


def _name(row: ExperimentSummary) -> str:
    return label(row.stack, row.sweep)


def _how(rows: Sequence[ExperimentSummary]) -> str:
    """How rows of one status ended, as a verb."""
    if rows[0].status is Status.SKIPPED:
        return "was skipped" if len(rows) == 1 else "were skipped"
    return f"ended as {rows[0].status.value}"


def _ratio(row: ExperimentSummary) -> Interval:
    """The ratio of a row that has one."""
    assert row.ratio is not None
    return row.ratio


def _times(row: ExperimentSummary, whose: str = "its speed") -> str:
    """`1.320 times its speed (95 % interval 1.300 to 1.340, 5 pairs)`."""
    speed_up, pairs = _ratio(row), _count(row.pairs, "pair")
    return f"{ratio(speed_up.median)} times {whose} ({interval_text(speed_up, ratio)}, {pairs})"


def _speed(row: ExperimentSummary) -> str:
    """`12,345 tokens/s (95 % interval 12,300 to 12,400, 5 runs)`."""
    speed = row.tokens_per_second
    assert speed is not None
    runs = _count(row.runs, "run")
    return f"{rate(speed.median)} tokens/s ({interval_text(speed, rate)}, {runs})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _loss(row: ExperimentSummary) -> str:
    """What is known of the loss of a row whose loss is not different."""
    if row.loss_verdict == "equivalent":
        return ", with an equivalent loss"
    return f", its loss not tested ({row.loss_reason})"
