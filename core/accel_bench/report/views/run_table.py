"""Report of `run`: the comparison of a scenario's stacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any, TypeVar

from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.metrics.breakdown import Phases, StartUp
from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY
from accel_bench.analysis.metrics.plugin_metrics import labels
from accel_bench.analysis.metrics.throughput import LossStatistics, TokenKinds
from accel_bench.analysis.metrics.utilization import Utilization
from accel_bench.analysis.schema import ExperimentSummary, Rates, Summary
from accel_bench.analysis.sections import GROUP, KIND, call_section
from accel_bench.analysis.wording import (
    JUDGED,
    count,
    figure_text,
    flops,
    grouped_by_reason,
    join_names,
    label,
    mebibytes,
    milliseconds,
    percent,
    plain_value,
    rate_interval,
    rate_unit,
    ratio_interval,
    shares,
    significant,
    size,
    with_spread,
)
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import AccelBenchError, PluginError
from accel_bench.plugins.doors import DoorEntry, find_entries, find_entry
from accel_bench.report.table import (
    Column,
    Line,
    Report,
    Section,
    Table,
    columns_of,
    keyed,
    number_column,
    one_or_list,
    reader,
)
from accel_bench.report.views.training import update_cost_text, verdict_column
from accel_bench.scenario.sweep import is_chosen

SectionValueT = TypeVar("SectionValueT", Table, str)
"""Type of what a section's function returns: tables, or sentences."""

NEW_TOKENS = "new tokens/s"
"""Unit of the speed: generated tokens, in the time of prompts and answers."""

WIDTH = 80
"""Width of the page without a terminal, in columns."""

PHASE_TOLERANCE = 0.05
"""Relative difference from the window's median above which a step split into phases is flagged."""

SUMMARY_CHARACTERS = 200
"""Largest length of a plugin's summary of its evidence, in characters."""

BYTES = "bytes per device"
"""Unit of peak memory in documents; tables for people have MiB or GiB instead."""

MORE = ("step", "last loss", "status")
"""Headers of the columns that only a verbose or a wide table has."""


def stacks_report(
    summaries: Sequence[Summary], verbose: bool = False, wide: bool = False
) -> Report:
    """Return a report with a section for each scenario; `verbose` adds columns and details.

    The added columns form a table of their own, unless the page is `wide`.
    """
    rows = [Line(summary=summary, row=row) for summary in summaries for row in summary.experiments]
    columns = (*FLAT, *_section_columns(summaries), *FLAT_AT_THE_END)
    return Report(
        sections=[_section(summary, verbose, wide) for summary in summaries],
        document=one_or_list(summaries),
        flat=Table(columns if rows else (), rows),
        width=WIDTH,
    )


def _section(summary: Summary, verbose: bool, wide: bool) -> Section:
    """Return the headline, the tables and the notes of one scenario."""
    headline = conclusion(summary)
    names, figures = _columns(summary)
    tables = [[*names, *(column for column in figures if wide or column.header not in MORE)]]
    if verbose and not wide:
        tables.append([*names, *(column for column in figures if column.header in MORE)])
    return Section(
        title=summary.scenario,
        headline=headline,
        tables=[
            *(Table(columns, summary.experiments) for columns in tables),
            *extra_tables(summary),
        ],
        notes=[*_notes(summary, headline), *(details(summary) if verbose else ())],
    )


def extra_tables(summary: Summary) -> list[Table]:
    """Return the tables below the table of stacks: of metrics, and of the summary's sections.

    Sections that show metrics themselves stand before the table of the other metrics.
    """
    shown = {name: frozenset(_constants(name, "SHOWN_METRICS")) for name in summary.sections}
    first = [table for name in shown if shown[name] for table in _section_tables(summary, name)]
    later = [table for name in shown if not shown[name] for table in _section_tables(summary, name)]
    return [*first, *_metric_tables(summary, frozenset().union(*shown.values())), *later]


def _section_tables(summary: Summary, name: str) -> Sequence[Table]:
    """Return the tables of the summary's section `name`; if it fails, a table with only a note."""
    document = summary.sections[name]
    try:
        tables = _section_values(summary, name, "tables", Table)
    except AccelBenchError as error:
        return [Table((), (), notes=[f"left out: {error}"])]
    if tables is not None:
        return tables
    keys = dict.fromkeys(key for row in document for key in row)
    return [replace(keyed(keys, document), title=name)]


def _section_texts(summary: Summary, what: str, *row: ExperimentSummary) -> Iterator[str]:
    """Yield the sentences of a summary's sections: on all stacks if `what` is `notes`, on the stack
    of `row` if `what` is `details`. For a section that fails, yield its error in a sentence."""
    for name in summary.sections:
        try:
            yield from _section_values(summary, name, what, str, *row) or ()
        except AccelBenchError as error:
            yield f"left out: {error}"


def _section_values(
    summary: Summary, name: str, what: str, kind: type[SectionValueT], *row: ExperimentSummary
) -> Sequence[SectionValueT] | None:
    """Return the values of type `kind` that the section `name` gives by its function `what`; None
    if it has no such function. Raises PluginError if the function fails or gives other values."""
    entry = find_entry(GROUP, KIND, name)
    if not hasattr(entry.load(), what):
        return None
    values = call_section(entry, what, summary, summary.sections[name], *row)
    # A text is a sequence of texts, and no list of them.
    if isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values):
        return values
    raise entry.broken(f"its function {what!r} returned no {what}")


def _section_columns(summaries: Sequence[Summary]) -> Iterator[Column]:
    """Yield the CSV columns of accel-bench's sections, and of other sections in the summaries."""
    named = dict.fromkeys(name for summary in summaries for name in summary.sections)
    for name, entry in find_entries(GROUP, KIND).items():
        if entry.is_ours or name in named:
            yield from _constants(name, "CSV_COLUMNS")


def _constants(name: str, what: str) -> Sequence[Any]:
    """Return the sequence `what`, such as `CSV_COLUMNS`, that the section `name` defines; empty if
    it defines none or cannot be loaded. Errors in a column's function name the section."""
    entry = find_entry(GROUP, KIND, name)
    try:
        items: Sequence[Any] = tuple(getattr(entry.load(), what, ()))
    except PluginError:  # A notice names it already.
        return ()
    columns = [item for item in items if isinstance(item, Column)]
    return [replace(column, cell=partial(_cell, entry, column.cell)) for column in columns] or items


def _cell(entry: DoorEntry, cell: Callable[[Any], Any], row: Any) -> Any:
    with entry.blamed():
        return cell(row)


def stack_columns(summary: Summary) -> list[Column]:
    """Return the columns of figures in the table of stacks, without those that name a row."""
    return _columns(summary)[1]


def comparison_notes(summary: Summary) -> list[str]:
    """Return all notes on a summary except those of `doubts`, then the `details` of each stack."""
    shared = _reasons_of_all(summary)
    rows = [
        row.model_copy(
            update={"reasons": tuple(text for text in row.reasons if text not in shared)}
        )
        for row in summary.experiments
    ]
    others = summary.model_copy(update={"experiments": tuple(rows), "noise": ()})
    return [*_notes(others, ""), *details(summary)]


def doubts(summary: Summary) -> list[str]:
    """Return notes on the host's load, and reasons that degrade every measured row."""
    degraded = [f"all rows are degraded: {reason}" for reason in _reasons_of_all(summary)]
    return [*(f"load: {note}" for note in summary.noise), *degraded]


def _reasons_of_all(summary: Summary) -> list[str]:
    measured = [row.reasons for row in summary.experiments if row.status.completed]
    return [reason for reason in (measured or [()])[0] if all(reason in own for own in measured)]


def _notes(summary: Summary, headline: str) -> list[str]:
    """Return the notes of a page, without reasons that `headline` states."""
    return [
        *([summary.race.text] if summary.race else []),
        *summary.notices,
        *_load_notes(summary),
        *_evidence(summary),
        *_section_texts(summary, "notes"),
        *_reason_notes(summary, headline),
    ]


def _load_notes(summary: Summary) -> list[str]:
    """Return notes on the load of requests that arrive at a rate; empty without a rate."""
    if all(row.offered_rate is None for row in summary.experiments):
        return []
    speed = "the speed is that of the busy time"
    if all(row.quantity.name != MEDIAN_LATENCY for row in summary.experiments):
        return [f"at inference.rate: {speed}"]
    return [
        "at inference.rate: times as fast is by the latency of the median request, from its "
        f"arrival to its last token; {speed}"
    ]


def _columns(summary: Summary) -> tuple[list[Column], list[Column]]:
    """Return two lists: columns that identify a row, such as the stack, and columns of figures."""
    keys = list(dict.fromkeys(key for row in summary.experiments for key in row.sweep))
    tagged = any(is_chosen(row.tag, row.sweep) for row in summary.experiments)
    keys = [] if tagged else keys  # the tags tell the points apart
    short = [key.rpartition(".")[2] for key in keys]
    names = [Column("stack", reader("stack"), kind="name")]
    names += [Column("tag", reader("tag"), kind="name")] if tagged else []
    for key, word in zip(keys, short, strict=True):
        title = (word if short.count(word) == 1 else key).replace("_", " ")
        cell = partial(_swept, key)
        names.append(Column(key, cell, title=title, form=plain_value, kind="name"))
    base = summary.baseline

    def compared(row: ExperimentSummary) -> ExperimentSummary | None:
        return None if row.stack == base or row.ratio is None else row

    times = summary.experiments[0].words.times if summary.experiments else ""
    training = (
        number_column("loss.last", "last loss", "", partial(significant, digits=4)),
        verdict_column("loss", compared),
        verdict_column("update", compared),
    )
    return names, [
        number_column("tokens_per_second", "speed", speed_unit(summary), rate_interval),
        *_quantity_columns(summary),
        Column(times, lambda row: compared(row) and row.ratio, unit=JUDGED,
               form=ratio_interval, kind="number"),
        number_column("step_seconds", "step", "ms p50/p95", _step),
        number_column("peak_memory_bytes", "memory", "MiB", mebibytes),
        *(column for name in summary.sections for column in _constants(name, "STACK_COLUMNS")),
        *([verdict_column("output", compared)] if generates(summary) else training),
        Column("verdict", partial(_verdict, base), kind="word"),
        Column("status", reader("status"), kind="word"),
    ]  # fmt: skip


def _quantity_columns(summary: Summary) -> list[Column]:
    """Return a list with a column of the compared quantity; empty for the default, or no values."""
    known = (row.quantity for row in summary.experiments if row.quantity.value)
    by_name = {quantity.name: quantity for quantity in known}
    return [
        number_column("quantity.value", name, unit, partial(with_spread, form=form))
        for name, quantity in by_name.items()
        if not quantity.usual
        for unit, form in [
            ("per device", size) if quantity.unit == BYTES else (quantity.unit, figure_text)
        ]
    ]


def generates(summary: Summary) -> bool:
    """Return whether a scenario's stacks answer requests, and train nothing."""
    return any(row.mode == "inference" for row in summary.experiments)


def speed_unit(summary: Summary) -> str:
    """Return the unit of a scenario's speeds, such as `tokens/s`, `images/s` or `new tokens/s`."""
    if generates(summary):
        return NEW_TOKENS
    return rate_unit(row.counts for row in summary.experiments)


def _metric_tables(summary: Summary, shown: Collection[str]) -> list[Table]:
    """Return a table of the metrics whose names are not in `shown`; an empty list without any."""
    metrics = (metric for row in summary.experiments for metric in row.metrics)
    names = labels(metric for metric in metrics if metric.name not in shown)
    rows = []
    for key, name in names.items():
        pairs = [(row, m) for row in summary.experiments for m in row.metrics if m.key == key]
        bases = {canonical_json(r.sweep): m for r, m in pairs if r.stack == summary.baseline}
        for row, metric in pairs:
            # The baseline's own metric has nothing to be compared with.
            base = bases.get(canonical_json(row.sweep)) if row.stack != summary.baseline else None
            rows.append(Line(name=name, stack=label(row), metric=metric, base=base))
    notes = [(row.stack, f"{row.name}: {row.metric.reason}") for row in rows if row.metric.reason]
    return [Table(METRICS, rows, notes=grouped_by_reason(notes))] if rows else []


METRICS = (
    Column("metric", reader("name")),
    Column("stack", reader("stack"), kind="name"),
    number_column("metric.value", "value", "", partial(significant, digits=4)),
    Column("against the baseline", lambda row: row.metric.against(row.base) or None),
)
"""Columns of the metrics that the scenario names."""


def _swept(key: str, row: ExperimentSummary) -> Any:
    return row.sweep.get(key)


def _step(step: Any) -> str:
    return f"{milliseconds(step.p50)}/{milliseconds(step.p95)}"


def _verdict(baseline: str, row: ExperimentSummary) -> str | None:
    """Return the verdict on speed, `baseline`, or a failed run's status; None if not tested."""
    if not row.status.completed:
        return row.status.value
    if row.stack == baseline:
        return "baseline"
    dropped = " (dropped)" if row.dropped else ""
    return row.verdict_word + dropped if row.ratio or row.failed_audit else None


def _evidence(summary: Summary) -> list[str]:
    """Return plugins' summaries of the evidence of completed runs, each text once."""
    texts = []
    for row in summary.experiments:
        for plugin, shown in row.evidence.items():
            if isinstance(shown, dict) and isinstance(text := shown.get("summary"), str):
                text = shorten(text, SUMMARY_CHARACTERS, placeholder=" ...")
                note = text if plugin == row.stack else f"{plugin}: {text}"
                texts.append((label(row), note))
    return grouped_by_reason(texts)


def _reason_notes(summary: Summary, headline: str) -> list[str]:
    """Return reasons why rows are not ok, without those in `headline`, and notes on the load."""
    reasons = [
        (label(row), reason)
        for row in summary.experiments
        for reason in _reasons(row, summary.baseline, headline)
    ]
    return [*grouped_by_reason(reasons), *(f"load: {note}" for note in summary.noise)]


def _reasons(row: ExperimentSummary, baseline: str, headline: str) -> Iterator[str]:
    """Yield the reasons of one row that `headline` lacks; `baseline` is the baseline's name."""
    degraded = "degraded: " if row.status.completed else ""

    def said(reason: str) -> bool:
        return reason in row.other_work and reason in headline

    yield from (f"{degraded}{reason}" for reason in row.reasons if not said(reason))
    if row.stack == baseline or not row.status.completed:
        return
    if row.dropped:
        yield row.dropped
    if row.verdict_reason and not row.ratio:
        what = "speed" if row.quantity.of_speed else row.quantity.name
        yield f"{what} not tested: {row.verdict_reason}"
    if row.repeated_rounds:
        numbers = join_names([str(number + 1) for number in row.repeated_rounds])
        yield f"round {numbers}: measured again, and counted as it came out then"
    if row.output_reason and row.ratio and row.output_reason not in headline:
        yield f"output {row.output_word}: {row.output_reason}"
    if row.generated:
        return
    if row.loss_reason and row.ratio and row.loss_reason not in headline:
        yield f"loss {row.loss_word}: {row.loss_reason}"
    if row.update_reason and row.ratio and row.update_reason not in headline:
        yield f"update {row.update_word}: {row.update_reason}"


def details(summary: Summary) -> list[str]:
    """Return notes on each stack: changed settings, time by phase, minimum detectable effect."""
    notes = []
    for row in summary.experiments:
        allowed = f"loss equivalent: {row.loss_allowance}" if row.loss_allowance else ""
        parts = [row.differs, _phases(row), *_section_texts(summary, "details", row)]
        parts += [_rate(row), _start(row)]
        parts += [_visible(row), allowed, row.optimizer_by_design, update_cost_text(row)]
        notes.append(f"{label(row)}: {'; '.join(filter(None, parts))}")
    kinds = dict.fromkeys(row.peak_memory_kind or "" for row in summary.experiments)
    if measured := ", ".join(filter(None, kinds)):
        notes.append(f"memory: peak of the device that needed most, {measured}")
    return notes


def _phases(row: ExperimentSummary) -> str:
    if row.phases is None or not row.phases.step_seconds:
        return ""
    whole, to_window = row.phases.step_seconds, row.phases.to_window
    seconds = row.phases.model_dump(include={"data", "forward", "backward", "optimizer"})
    parts = shares({name: value for name, value in seconds.items() if value is not None}, whole)
    flagged = to_window is not None and abs(to_window - 1) > PHASE_TOLERANCE
    of_which = f" (of a step {to_window:.2f} times the window's)" if flagged else ""
    return f"a step is {parts}{of_which}"


def _rate(row: ExperimentSummary) -> str:
    if row.utilization is None:
        return row.utilization_reason
    per_second = f"{flops(row.utilization.model_flops_per_second.causal)}/s per device (causal)"
    mfu = row.utilization.mfu
    rate = f"{per_second}, MFU {mfu.causal:.1%}" if mfu else per_second
    return f"{rate} ({row.utilization_reason})" if row.utilization_reason else rate


def _start(row: ExperimentSummary) -> str:
    if row.start_up is None or row.start_up.first_step_seconds is None:
        return ""
    compiling = row.start_up.compile_seconds
    also = f", {compiling:.1f} s in the compiler" if compiling else ""
    return f"first step {row.start_up.first_step_seconds:.3g} s{also}"


def _visible(row: ExperimentSummary) -> str:
    effect = row.minimum_detectable_effect
    return (
        f"{count(row.rounds, 'round')} show differences above {percent(effect)}" if effect else ""
    )


def _plugins(flat: Line) -> list[str]:
    return [f"{p.name} {p.distribution} {p.version}" for p in flat.row.plugins]


NAMED_BELOW = "rates tokens start_up phases utilization memory losses"
"""Fields of a row whose own fields become columns without the outer field's name."""

LEFT_OUT = "evidence effective update_cost"
"""Fields of a row that the CSV leaves out."""

PEAKS = ("reserved", "nvml", "rss")
"""Ways of measuring memory whose peak has a column in addition to `peak_memory_bytes`."""

FLAT = (
    *columns_of(Summary, "summary", names="schema_version scenario baseline"),
    *columns_of(ExperimentSummary, "row", without=f"{NAMED_BELOW} {LEFT_OUT}"),
    *columns_of(Rates, "row.rates"),
    *columns_of(TokenKinds, "row.tokens.per_step_global", "{}_tokens_per_step_global"),
    *columns_of(StartUp, "row.start_up"),
    *columns_of(Phases, "row.phases", "step_{}_seconds", "data forward backward optimizer"),
    *columns_of(Utilization, "row.utilization", names="model_flops_per_second mfu hfu"),
    *(Column(f"peak_{kind}_bytes", reader(f"row.memory.{kind}.bytes")) for kind in PEAKS),
    *columns_of(LossStatistics, "row.losses", "loss_{}"),
)
"""Columns of the CSV before the columns of sections."""

FLAT_AT_THE_END = (
    Column("plugins", _plugins),
    Column("metrics", reader("row.metric_values")),
)
"""Columns of the CSV after the columns of sections."""
