"""Report of `compare`: two stored experiments side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.compare import ExperimentComparison, Operand
from accel_bench.analysis.metrics.plugin_metrics import MetricFigure, labels
from accel_bench.analysis.schema import StepSeconds
from accel_bench.analysis.wording import (
    JUDGED,
    WITHIN,
    count,
    label,
    mebibytes,
    milliseconds,
    percent,
    plain_value,
    point_name,
    rate_interval,
    ratio_interval,
    ratio_texts,
    significant,
    with_reason,
)
from accel_bench.report.table import (
    EMPTY,
    Column,
    Report,
    Section,
    Table,
    columns_of,
    in_units,
    listed,
    number_column,
    one_or_list,
    paths,
    reader,
)
from accel_bench.result import Status
from accel_bench.scenario.uses import CALLS

OF_TRAINING = ("samples/s", "steps/s", "last loss", "mean loss")
"""Rows left out for calls of an operation, for which they repeat the speed or are empty."""

DIFFERENT = ("different", WITHIN)
"""Beginnings of verdicts on a training that differs from the baseline's."""


def compare_report(comparisons: Sequence[ExperimentComparison]) -> Report:
    """Return a report with the verdict, the figures and the differences of each comparison."""
    return Report(
        sections=[*_points(comparisons), *(_section(comparison) for comparison in comparisons)],
        document=one_or_list(comparisons),
        flat=Table(FLAT, comparisons),
    )


def _points(comparisons: Sequence[ExperimentComparison]) -> Iterator[Section]:
    """Yield a section with a table of all sweep points; yield nothing for a single point."""
    if len(comparisons) > 1:
        names = " and ".join((comparisons[0].a.stack, comparisons[0].b.stack))
        counts = [side.counts for row in comparisons for side in (row.a, row.b)]
        columns = in_units(POINTS, counts)
        if all(row.paired for row in comparisons):
            units = {ESTIMATED: JUDGED}
            columns = [
                replace(column, unit=units.get(column.unit, column.unit)) for column in columns
            ]
        first = comparisons[0]
        columns = [
            replace(column, title=first.words.times) if column.key == "ratio" else column
            for column in columns
        ]
        title = f"{names} at {len(comparisons)} sweep points{first.quantity.by}"
        yield Section(title=title, tables=[Table(columns, comparisons)])


def _speed_of(side: str, one: ExperimentComparison) -> str:
    """Return the speed of experiment `side` (`a` or `b`) as text, or its status if it failed."""
    operand: Operand = getattr(one, side)
    if not operand.status.completed:
        return "OOM" if operand.status is Status.OOM else operand.status.value
    return rate_interval(operand.tokens_per_second) if operand.tokens_per_second else EMPTY


def _headline(one: ExperimentComparison) -> str:
    """Return the verdict on B against A in one sentence, with its reasons."""
    a, b = (label(side) for side in (one.a, one.b))
    if one.ratio is None:
        return f"no ratio: {one.verdict_reason}."
    runs = (
        count(one.rounds, "round")
        if one.paired
        else f"{one.a.runs} and {count(one.b.runs, 'run')}, unpaired"
    )
    median, *ends = ratio_texts(one.ratio)
    interval = f"[{', '.join(ends)}] " if ends else ""
    speed = f"B, {b}, is {median} {one.words.times} as A, {a} {interval}({runs}){one.quantity.by}"
    verdict = (
        one.verdict_word if one.verdict != "not tested" else f"no verdict, {one.verdict_reason}"
    )
    if one.verdict == "inconclusive":
        verdict = with_reason(one.verdict, one.verdict_reason)
    parts = [f"{speed}: {verdict}"]
    if one.verdict == "inconclusive" and one.minimum_detectable_effect is not None:
        effect = percent(one.minimum_detectable_effect)
        parts.append(f"these rounds show only effects above {effect}")
    # What differs comes first: a speed that was bought with it is not for the same training.
    trained = {
        f"{what} {with_reason(word, reason)}": word for what, (word, reason) in one.verdicts.items()
    }
    different = [text for text, word in trained.items() if word.startswith(DIFFERENT)]
    parts = [*different, *parts, *(text for text in trained if text not in different)]
    return "; ".join(parts) + "."


def _section(one: ExperimentComparison) -> Section:
    shown = in_units(_facts(one), (one.a.counts, one.b.counts))
    facts = [(fact.header, fact.text(one.a), fact.text(one.b)) for fact in shown]
    names = labels((*one.a.metrics, *one.b.metrics))
    facts += [(names[a.key], _metric(a), _metric(b, a)) for a, b in _shared_metrics(one)]
    tables = [listed(("", "A", "B"), facts)]
    for title, differences in (
        ("declared", one.declared),
        ("differs, and is not declared", one.differing),
    ):
        if differences:
            tables.append(differences_table((title, "A", "B"), differences))
    reasons = (f"{side.stack}: {reason}" for side in (one.a, one.b) for reason in side.reasons)
    comparable = "yes" if one.comparable else "no: more differs than the stacks declare"
    return Section(
        title=" and ".join(label(side) for side in (one.a, one.b)),
        headline=_headline(one),
        tables=tables,
        notes=[*reasons, f"comparable: {comparable}"],
    )


def _facts(one: ExperimentComparison) -> Sequence[Column]:
    """Return a `Column` for each figure of A and B, fewer if one operation is called on its own."""
    if (one.a.counts, one.b.counts) != (CALLS, CALLS):
        return FACTS
    return [
        replace(fact, title="peak MiB of the process") if fact.header == "peak MiB" else fact
        for fact in FACTS
        if fact.header not in OF_TRAINING
    ]


def _shared_metrics(
    one: ExperimentComparison,
) -> Iterator[tuple[MetricFigure, MetricFigure | None]]:
    """Yield each metric as a pair, A's and B's. The second is None if B lacks the metric. If A
    lacks it, the first is B's metric with the value None."""
    theirs = {metric.key: metric for metric in one.b.metrics}
    for metric in one.a.metrics:
        yield metric, theirs.pop(metric.key, None)
    for metric in theirs.values():
        yield metric.model_copy(update={"value": None}), metric


def _metric(metric: MetricFigure | None, base: MetricFigure | None = None) -> str:
    if metric is None or metric.value is None:
        return EMPTY
    against = metric.against(base)
    return significant(metric.value, 4) + (f" ({against})" if against else "")


def _step(step: StepSeconds) -> str:
    return "/".join(map(milliseconds, (step.p50, step.p95, step.p99)))


def setting_text(value: Any) -> str:
    """Return the value of a setting as text, or a dash for None."""
    return EMPTY if value is None else plain_value(value)


def differences_table(headers: Sequence[str], differences: Sequence[Difference]) -> Table:
    """Return a table of what differs between A and B: a name and both values in each row."""
    rows = [(diff.key, setting_text(diff.a), setting_text(diff.b)) for diff in differences]
    return listed(headers, rows)


def _flat_differences(differences: Sequence[Difference]) -> list[str]:
    return [f"{d.key}: {setting_text(d.a)} | {setting_text(d.b)}" for d in differences]


ESTIMATED = "[95 % interval]"
"""Unit of ratios of unpaired runs, which get no verdict."""

POINTS = (
    Column("point", lambda row: point_name(row.a), kind="name"),
    Column("A", partial(_speed_of, "a"), unit="tokens/s", kind="number"),
    Column("B", partial(_speed_of, "b"), unit="tokens/s", kind="number"),
    number_column("ratio", "times as fast", ESTIMATED, ratio_interval),
    Column("loss", reader("loss_word"), kind="word"),
    Column("verdict", reader("verdict_word"), kind="word"),
)
"""Columns of the table over sweep points."""

FACTS = (
    Column("experiment", reader("experiment_id")),
    Column("stack", label),
    Column("session", reader("sessions"), form=", ".join),
    Column("tokens/s", reader("tokens_per_second"), form=rate_interval),
    Column("samples/s", reader("rates.samples_per_second"), form=rate_interval),
    Column("steps/s", reader("rates.steps_per_second"), form=rate_interval),
    Column("step ms p50/p95/p99", reader("step_seconds"), form=_step),
    Column("spread", reader("step_seconds.spread"), form=percent),
    Column("peak MiB", reader("peak_memory_bytes"), form=mebibytes),
    Column("last loss", reader("loss.last"), form=partial(significant, digits=4)),
    Column("mean loss", reader("losses.mean"), form=partial(significant, digits=4)),
    *paths("", "runs status"),
    Column("declares", reader("differs")),
)
"""Rows of the table of facts for people, each with the values of A and B."""

FLAT = (
    *columns_of(ExperimentComparison),
    *(Column(f"{side}_metrics", reader(f"{side}.metric_values")) for side in "ab"),
    Column("declared", lambda row: _flat_differences(row.declared)),
    Column("differing", lambda row: _flat_differences(row.differing)),
)
"""Columns of the CSV."""
