"""Conclusion of a comparison in one sentence: verdicts, open questions, and how to settle them."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.checks.comparability import NOT_COMPARABLE
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.sections import compared_by_sections
from accel_bench.analysis.statistics.verdict import ALIKE, MAXIMUM_ROUNDS, MINIMUM_ROUNDS
from accel_bench.analysis.wording import (
    StackAtPoint,
    alike_words,
    count,
    join_names,
    label,
    milliseconds,
    rate,
    ratio_texts,
    with_reason,
)
from accel_bench.result import Status
from accel_bench.scenario.uses import CALLS

SPELT_OUT = 3
"""Largest number of stacks of one kind with a clause each; further stacks are counted."""

SPELT_OUT_KINDS = {
    "better, different": "{words.better} with another {what}",
    "better": "{words.better}",
    "different": "different in their {what}",
    "worse": "{words.worse}",
    "same": "{words.same}",
}
"""Kinds of verdicts in the order of their clauses, with words for counted stacks."""


def conclusion(summary: Summary) -> str:
    """Return the conclusion of a comparison, in one sentence.

    Faster stacks with a different training come first, then a failed baseline and the other
    verdicts; failed and skipped stacks come last.
    """
    return "; ".join(conclusions(summary)) + "."


def conclusions(summary: Summary) -> list[str]:
    """Return the parts of the sentence that `conclusion` returns, in order."""
    if all(row.status is Status.SKIPPED for row in summary.experiments):
        return ["nothing was run", *_ended(summary.experiments)]
    if not any(row.status.completed for row in summary.experiments):
        return ["no experiment completed", *_ended(summary.experiments)]
    alone = all(row.ratio is None or row.stack == summary.baseline for row in summary.experiments)
    clauses = _uncompared(summary) if alone else _compared(summary)
    return [*clauses, *_failed_rounds(summary.experiments)]


def _compared(summary: Summary) -> list[str]:
    """Return the parts of the conclusion for each kind of verdict, the fastest stacks first."""
    kinds: dict[str, list[ExperimentSummary]] = {}
    for row in sorted(_others(summary), key=lambda row: -row.ratio.median if row.ratio else 0.0):
        if row.ratio:
            kinds.setdefault(_kind(row), []).append(row)
    first, *others = [
        _spell_out(kind, kinds.get(kind, ()), summary.baseline) for kind in SPELT_OUT_KINDS
    ]
    return [
        *first,
        *_failed_baseline(summary),
        *(clause for clauses in others for clause in clauses),
        *_other_work(summary.experiments),
        *_inconclusive(kinds.get("inconclusive", ()), summary.baseline),
        *_slow_runs(kinds.get("inconclusive", ())),
        *_too_few_rounds(kinds.get("not tested", ()), summary.baseline),
        *_not_comparable(kinds.get(NOT_COMPARABLE, ()), summary.baseline),
        *_failed_audit(_others(summary)),
        *_ended(_others(summary)),
    ]


def _kind(row: ExperimentSummary) -> str:
    if row.training_difference:
        return "better, different" if row.verdict == "better" else "different"
    if row.verdict_reason.startswith(NOT_COMPARABLE):
        return NOT_COMPARABLE
    return row.verdict


def _spell_out(kind: str, rows: Sequence[ExperimentSummary], baseline: str) -> list[str]:
    clauses = [_clause(row, baseline) for row in rows[:SPELT_OUT]]
    more = len(rows) - SPELT_OUT
    if more <= 0:
        return clauses
    what = "output" if rows[0].generated else "training"
    name = SPELT_OUT_KINDS[kind].format(words=rows[0].words, what=what)
    return [*clauses, f"{more} more {'is' if more == 1 else 'are'} {name}"]


def _clause(row: ExperimentSummary, baseline: str) -> str:
    """Return a clause on a stack's ratio to `baseline`, with the verdicts on speed and training."""
    name, as_fast = label(row), _as_fast(row, baseline)
    if row.training_difference:
        sure = row.verdict in ("better", "worse")
        what = "output" if row.generated else "training"
        speed = "" if sure else f" (speed: {row.verdict_word})"
        return (
            f"the {what} of {name} is different ({row.training_difference}), so that being "
            f"{as_fast} is not for the same {what}{speed}"
        )
    verbs = {"worse": f"is {row.words.worse},", "same": f"is {row.words.same},"}
    verb = verbs.get(row.verdict, "is")
    return f"{name} {verb} {as_fast}, {_trained(row)}"


def _trained(row: ExperimentSummary) -> str:
    """Return words on the training, such as `with an equivalent loss and update`."""
    if row.generated:
        if row.output_verdict == "bitwise equal":
            return "with the same output, token for token"
        return f"with an output that is {with_reason(row.output_word, row.output_reason)}"
    parts = {
        "loss": (row.loss_word, row.loss_reason),
        "update": (row.update_word, row.update_reason),
    }
    others = [
        f"its {what} is {verdict} ({reason})"
        for what, (verdict, reason) in parts.items()
        if verdict not in ALIKE and reason
    ]
    alike = alike_words({what: verdict for what, (verdict, _) in parts.items()})
    return ", ".join([*alike, *others])


OPEN = "cannot be distinguished from"
"""Words for a stack whose ratio's interval contains 1."""


def _inconclusive(rows: Sequence[ExperimentSummary], baseline: str) -> list[str]:
    """Return words on inconclusive stacks: stacks that more rounds would settle, stacks that no
    rounds would settle, and stacks with another reason, such as load on the host."""
    disturbed = [row for row in rows if row.verdict_reason]
    rows = [row for row in rows if not row.verdict_reason]
    rounds = max((row.rounds_needed or 0 for row in rows), default=0)
    way_out = f"about {rounds} rounds would settle it (--resume --rounds {rounds})"
    hopeless = (
        f"even {MAXIMUM_ROUNDS} rounds would not settle it: look for what makes the machine noisy"
    )
    clauses = []
    for open_rows, end in (
        ([row for row in rows if row.rounds_needed is not None], way_out),
        ([row for row in rows if row.rounds_needed is None], hopeless),
    ):
        if open_rows:
            names = join_names(list(map(_range, open_rows)))
            clauses.append(f"{names} {OPEN} {baseline}, {end}")
    return clauses + [
        f"{_range(row)} {_leaning(row)} {baseline}: {row.verdict_reason}" for row in disturbed
    ]


def _slow_runs(rows: Sequence[ExperimentSummary]) -> list[str]:
    """Return one text on slow runs that keep verdicts open, with the option that repeats rounds."""
    named = {
        (label(StackAtPoint(run.stack, row.sweep, row.tag)), run.round): run.factor
        for row in rows
        for run in row.slow_runs
    }
    if not named:
        return []
    runs = [
        f"{name} in round {number + 1} took {factor:.1f} times as long as in its other rounds"
        for (name, number), factor in named.items()
    ]
    ways = dict.fromkeys(f"--resume --repeat-round {number + 1}" for _, number in named)
    return [f"{join_names(runs)} ({join_names(list(ways))} measures such a round again, once)"]


def _leaning(row: ExperimentSummary) -> str:
    """Return `may be faster than` (or slower), or the text OPEN if the interval contains 1."""
    if row.ratio and row.ratio.low is not None and row.ratio.low > 1:
        return f"may be {row.words.better} than"
    if row.ratio and row.ratio.high is not None and row.ratio.high < 1:
        return f"may be {row.words.worse} than"
    return OPEN


def _range(row: ExperimentSummary) -> str:
    assert row.ratio is not None
    median, *ends = ratio_texts(row.ratio)
    return f"{label(row)} ({' to '.join(ends or [median])} {_times(row)})"


def _times(row: ExperimentSummary) -> str:
    return row.words.times + ("" if row.quantity.usual else row.quantity.by)


def _too_few_rounds(rows: Sequence[ExperimentSummary], baseline: str) -> list[str]:
    """Return one text on stacks with too few rounds for a verdict; empty without such stacks."""
    if not rows:
        return []
    names = [
        f"{label(row)} ({ratio_texts(row.ratio)[0]} {_times(row)})" for row in rows if row.ratio
    ]
    fewest = min(row.rounds for row in rows)
    return [
        f"no verdict against {baseline} for {join_names(names)}: {count(fewest, 'round')} of the "
        f"{MINIMUM_ROUNDS} that a verdict needs (--resume --rounds {MINIMUM_ROUNDS})"
    ]


def _not_comparable(rows: Sequence[ExperimentSummary], baseline: str) -> list[str]:
    """Return a text for each stack that is not comparable, with its differences."""
    return [
        f"no verdict against {baseline} for {label(row)} ({ratio_texts(row.ratio)[0]} "
        f"{_times(row)}), which is {row.verdict_reason}"
        for row in rows
        if row.ratio
    ]


def _uncompared(summary: Summary) -> list[str]:
    """Return the parts of the conclusion if no stacks were compared: speeds, and the reason."""
    sound = [row for row in summary.experiments if row.status.completed and not row.failed_audit]
    speeds = list(filter(None, map(_speed, sound)))
    others, failed = _others(summary), _failed_baseline(summary)
    compared = compared_by_sections(summary)
    what = f"no stack was compared with another, {compared} were" if compared else ""
    why = [] if failed else [what or "nothing was compared"]
    if len(others) == len(summary.experiments) and len(others) > 1:
        why = [f"nothing was compared, since the baseline {summary.baseline} was not run"]
    known = [join_names(speeds)] if speeds else []
    degraded = _other_work(summary.experiments)
    return [*failed, *known, *why, *degraded, *_failed_audit(summary.experiments), *_ended(others)]


def _failed_baseline(summary: Summary) -> list[str]:
    """Return one text on a baseline that did not complete; empty if it completed."""
    ends = [
        f"{label(row)} {_how([row])}"
        for row in summary.experiments
        if row.stack == summary.baseline and not row.status.completed
    ]
    return [f"the baseline {join_names(ends)}, so that there is no ratio to it"] if ends else []


def _failed_audit(rows: Sequence[ExperimentSummary]) -> list[str]:
    """Return a text for each stack that failed its self-audit, with the first contradiction."""
    return [
        f"no verdict rests on {label(row)}, which failed its self-audit "
        f"({join_names(row.failed_audit, 1)}; `accel-bench results check` names the runs)"
        for row in rows
        if row.failed_audit
    ]


def _other_work(rows: Sequence[ExperimentSummary]) -> list[str]:
    """Return a text for each completed stack that is degraded by a reason in what it computed."""
    return [
        f"{label(row)} is degraded: {join_names(row.other_work, 2)}"
        for row in rows
        if row.other_work and row.status.completed
    ]


def _ended(rows: Sequence[ExperimentSummary]) -> list[str]:
    """Return a text for each status of failed or skipped stacks, which names these stacks."""
    ends: dict[Status, list[ExperimentSummary]] = {}
    for row in rows:
        if not row.status.completed:
            ends.setdefault(row.status, []).append(row)
    return [f"{join_names([label(row) for row in same])} {_how(same)}" for same in ends.values()]


def _failed_rounds(rows: Sequence[ExperimentSummary]) -> list[str]:
    """Return texts on the failed rounds of each completed stack, one for each status."""
    return [
        f"{failed} of {count(row.runs + sum(row.failed_rounds.values()), 'round')} of {label(row)} "
        f"ended as {status.value}"
        for row in rows
        if row.status.completed
        for status, failed in row.failed_rounds.items()
    ]


def _others(summary: Summary) -> list[ExperimentSummary]:
    return [row for row in summary.experiments if row.stack != summary.baseline]


def _how(rows: Sequence[ExperimentSummary]) -> str:
    if rows[0].status is Status.SKIPPED:
        return "was skipped" if len(rows) == 1 else "were skipped"
    return f"ended as {rows[0].status.value}"


def _as_fast(row: ExperimentSummary, baseline: str) -> str:
    """Return a ratio in words: `1.32 times as fast as lora [1.30, 1.34]`."""
    assert row.ratio is not None
    median, *ends = ratio_texts(row.ratio)
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{median} {row.words.times} as {baseline}{interval}{row.quantity.by}"


def _speed(row: ExperimentSummary) -> str:
    """Return text such as `lora trains at 12,345 tokens/s [...]`; empty without a speed."""
    if row.request_seconds is not None and row.offered_rate is not None:
        latency = milliseconds(row.request_seconds.median)
        text = f"{label(row)} answers the median of {row.offered_rate:g} requests/s in {latency} ms"
        return f"{text}, and is saturated" if row.saturated else text
    speed = row.tokens_per_second
    if speed is None:
        return ""
    ends = [rate(end) for end in (speed.low, speed.high) if end is not None]
    interval = f"[{' to '.join(ends)}]" if ends else f"({count(row.runs, 'run')})"
    verb = "runs" if row.counts == CALLS else "trains"
    verb = "generates" if row.mode == "inference" else verb
    return f"{label(row)} {verb} at {rate(speed.median)} {row.counts}/s {interval}"
