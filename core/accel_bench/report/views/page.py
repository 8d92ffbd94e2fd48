"""A page about stored sessions: what `report` writes, ready for HTML and Markdown."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

from accel_bench._version import __version__
from accel_bench.analysis.conclusion import conclusions
from accel_bench.analysis.metrics.cost import EXCLUDED
from accel_bench.analysis.overview import OverviewRow
from accel_bench.analysis.page import PageRow, ScenarioPage, count_endings
from accel_bench.analysis.repeated import command_for_stack
from accel_bench.analysis.wording import (
    EARLIEST,
    count,
    duration,
    join_names,
    label,
    mebibytes,
    plain_value,
    rate,
    rate_interval,
    settings,
    size,
    time_text,
)
from accel_bench.documents.anonymity import FOLDER
from accel_bench.documents.files import slug
from accel_bench.machine.info import Machine
from accel_bench.report.plots import COLOURS, MISSING, Plot, plots_available
from accel_bench.report.table import EMPTY, Column, Table, listed
from accel_bench.report.views.configuration import configuration
from accel_bench.report.views.page_bars import MemoryView, WaterfallView, memory_views, waterfalls
from accel_bench.report.views.page_plots import figures_of, history_of, memory_unit
from accel_bench.report.views.stack_comparison import comparison_notes, extra_tables, stack_columns
from accel_bench.scenario.tags import is_chosen

TOKENS = 1e9
"""Tokens to train on, until a reader writes another number."""

LONGEST_TEXT = 400
"""Letters of a reason or an error that a table shows; the log has all of it."""

GOOD_WORDS = frozenset(("faster", "equivalent"))
WARN_WORDS = frozenset(("inconclusive", "cannot tell", "degraded", "not tested", "not comparable"))
PLAIN_WORDS = frozenset(("baseline", "same", EMPTY))
"""Words of verdicts by their colour; all others are bad."""

ENDED = re.compile(r" (ended as \w+|was skipped|were skipped)$")
ANSWERS = re.compile(r"no ratio|no verdict|times as fast")
"""Clauses of an answer that say how rows ended, and what others say."""

SHOWN_COLUMNS = ("speed", "times as fast", "step", "memory", "loss", "update", "verdict")
"""Columns of figures in the table of stacks."""


@dataclass(frozen=True)
class RowView:
    """One row of the table of stacks."""

    id: str
    name: str

    stack: str

    number: int
    """Place of the stack on the page: its colour and its shape in plots."""

    row: PageRow
    cells: Sequence[tuple[Column, tuple[str, ...], str]]
    origin: str
    origin_title: str

    configuration: Sequence[tuple[str, bool]]
    """What was in effect, and whether that differs from the baseline."""

    reason: str = ""
    command: str = ""
    """What repeats a run of it; with names taken out, the session's command for this stack."""

    shared_command: str = ""
    """The session's command for this stack, as others can give it."""

    log: str = ""
    facts: Sequence[tuple[str, str]] = ()
    differences: Table | None = None

    @property
    def colour(self) -> int:
        """Number of its colour in the style sheet."""
        return self.number % COLOURS

    @property
    def why(self) -> str:
        """Why it is not ranked."""
        return self.row.why_not_ranked

    @property
    def summary(self) -> str:
        """What the stack adds, in a line."""
        return clipped(self.row.summary.differs, 120)


class Group(NamedTuple):
    """Rows of one sweep point."""

    title: str
    rows: Sequence[RowView]


class Job(NamedTuple):
    """What a job of the reader's takes with a stack."""

    row: RowView
    speed: float
    low: float | str
    high: float | str
    rate: str
    hours: str


@dataclass(frozen=True)
class ScenarioView:
    """One scenario of a page."""

    id: str
    name: str
    answer: str
    more: Sequence[str]
    counts: str
    measured: str
    columns: Sequence[Column]
    groups: Sequence[Group]
    figures: Sequence[Plot]
    waterfalls: Sequence[WaterfallView]
    memories: Sequence[MemoryView]
    memory_note: str
    jobs: Sequence[Job]
    tables: Sequence[Table]
    machine: Table
    notes: Sequence[str]
    tokens: str = f"{TOKENS:,.0f}"
    price: str = ""
    excluded: str = EXCLUDED
    legend: str = (
        "The fastest stands first; whether it is faster, the verdict says. Intervals are 95 % over "
        "processes. Times as fast is paired with the baseline, round by "
        "round. Below each stack stands what was really in effect; bold differs from the baseline."
    )

    @property
    def rows(self) -> list[RowView]:
        """Rows of all sweep points."""
        return [row for group in self.groups for row in group.rows]

    @property
    def contents(self) -> list[tuple[str, str]]:
        """Parts of the page: ends of their ids, and titles."""
        parts = {
            "stacks": ("Stacks", True),
            "plots": ("Plots", self.figures),
            "time": ("Where the time goes", self.waterfalls),
            "memory": ("Memory", self.memories),
            "job": ("Your job", self.jobs),
            "tables": ("More tables", self.tables),
            "each": ("Each stack", True),
            "machine": ("Machine", True),
            "notes": ("Notes", self.notes),
        }
        return [(key, title) for key, (title, there) in parts.items() if there]


@dataclass(frozen=True)
class Page:
    """All of a page."""

    title: str
    written: str
    scenarios: Sequence[ScenarioView]
    runs: str
    overview: Table | None
    history: Sequence[Plot]
    environments: Table | None
    notes: Sequence[str]
    made_by: str
    version: str = __version__


def page(
    scenarios: Sequence[ScenarioPage],
    rows: Sequence[OverviewRow],
    notes: Sequence[str] = (),
    arguments: Sequence[str] = (),
    plots: bool = True,
) -> Page:
    """Return a page of scenarios in detail, and of all runs at a glance where there are more.

    `arguments` are those that the page is made with, `plots` whether to draw any; without
    matplotlib there are none, and the page says so.
    """
    numbers = _numbers(scenarios, rows)
    draw = plots and plots_available()
    used: set[str] = set()
    views = [_scenario(one, numbers, used, draw) for one in scenarios]
    several = len(scenarios) > 1 or any(len(row.speeds) > 1 for row in rows) or not scenarios
    names = list(dict.fromkeys(one.summary.scenario for one in scenarios))
    missing = [MISSING] if plots and not draw else []
    return Page(
        title=join_names(names) if names else "all runs",
        written=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        scenarios=views,
        runs=f"{sum(sum(row.endings.values()) for row in rows):,}",
        overview=_overview(rows) if several else None,
        history=history_of(rows, numbers) if several and draw else (),
        environments=_environments(scenarios),
        notes=[*notes, *missing],
        made_by=f"Made by: {shlex.join(arguments)}" if arguments else "",
    )


def clipped(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text of at most so many letters."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _numbers(scenarios: Sequence[ScenarioPage], rows: Sequence[OverviewRow]) -> dict[str, int]:
    """Number the stacks in the order of the page; baselines come first, and share the grey."""
    baselines = dict.fromkeys(one.summary.baseline for one in scenarios)
    names = [row.summary.stack for one in scenarios for row in one.rows]
    names += [row.stack for row in rows]
    others = [name for name in dict.fromkeys(names) if name not in baselines]
    numbers = dict.fromkeys(baselines or others[:1], 0)
    for name in others:
        # Grey is the baseline's alone, also where the colours begin again.
        place = len(numbers) - len(baselines or others[:1])
        numbers.setdefault(name, 1 + place + place // (COLOURS - 1))
    return numbers


def _scenario(
    one: ScenarioPage, numbers: Mapping[str, int], used: set[str], draw: bool
) -> ScenarioView:
    answer, *more = conclusions(one.summary)
    columns = [
        _with_kind(column, one)
        for column in stack_columns(one.summary)
        if column.key in SHOWN_COLUMNS
    ]
    key = _unused(slug(one.summary.scenario), used)
    groups = list(_groups(one, numbers, key, used, columns))
    rows = [row for group in groups for row in group.rows]
    memories, memory_note = memory_views(rows)
    return ScenarioView(
        id=key,
        name=one.summary.scenario,
        answer=_sentence(answer),
        more=list(map(_sentence, _endings_together(more))),
        counts=_counts(one),
        measured=_measured(one),
        columns=columns,
        groups=groups,
        figures=figures_of(one, rows) if draw else (),
        waterfalls=waterfalls(rows, one.summary.baseline, TOKENS),
        memories=memories,
        memory_note=memory_note,
        jobs=list(_jobs(rows)),
        tables=extra_tables(one.summary),
        machine=_machine(one.machines),
        notes=comparison_notes(one.summary),
    )


def _with_kind(column: Column, one: ScenarioPage) -> Column:
    """Return the column; that of memory names what is counted, where rows agree on it."""
    kinds = {row.peak_memory_kind for row in one.summary.experiments} - {None, ""}
    if column.key != "memory" or len(kinds) != 1:
        return column
    return replace(column, unit=memory_unit(kinds.pop()))


def _endings_together(clauses: Sequence[str]) -> list[str]:
    """Return the clauses with those that say alone how rows ended joined at the end."""
    ended = [one for one in clauses if ENDED.search(one) and not ANSWERS.search(one)]
    others = [one for one in clauses if one not in ended]
    return [*others, *([", ".join(ended)] if ended else [])]


def _sentence(clause: str) -> str:
    return clause if clause.endswith(".") else f"{clause}."


def _counts(one: ScenarioPage) -> str:
    """Return `8 stacks: 4 measured, 1 out of memory, 1 invalid`."""
    rows = one.rows
    stacks = len({row.summary.stack for row in rows})
    what = count(stacks, "stack")
    if len(one.points) > 1:
        what = f"{count(len(rows), 'experiment')} of {what} at {len(one.points)} sweep points"
    return f"{what}: {', '.join(f'{number} {word}' for word, number in count_endings(rows))}"


def _measured(one: ScenarioPage) -> str:
    runs = [run for row in one.rows for run in row.runs.counted.values()]
    rounds = len({(run.session, run.round) for run in runs})
    seconds = sum(run.seconds for run in runs)
    imported = bool(runs) and all(run.imported for run in runs)
    hosts = list(dict.fromkeys(machine.host for machine in one.machines))
    on = f" on {join_names(hosts)}" if hosts else ""
    # Rounds of an import are made up: its files have none.
    what = "imported" if imported else f"in {count(rounds, 'round')}, {duration(seconds)} of them"
    when = time_text(one.started_at) + ("" if one.started_at == EARLIEST else " UTC")
    return f"{count(len(runs), 'run')} {what}{on}, {when} · session {one.command}"


def _groups(
    one: ScenarioPage,
    numbers: Mapping[str, int],
    key: str,
    used: set[str],
    columns: Sequence[Column],
) -> Iterator[Group]:
    for rows in one.points:
        first = rows[0].summary
        tag = first.tag if is_chosen(first.tag, first.sweep) else settings(first.sweep)
        base = next((row for row in rows if row.summary.stack == one.summary.baseline), None)
        views = []
        for row in rows:
            stack = row.summary.stack
            name = label(stack, row.summary.sweep)
            anchor = _unused(f"row-{slug(f'{key}-{name}')}", used)
            views.append(_row(row, base, one.arguments, (anchor, numbers[stack]), columns))
        yield Group(tag if len(one.points) > 1 else "", views)


def _unused(name: str, used: set[str]) -> str:
    """Return a name that nothing else on the page has."""
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name}-{number}"
    used.add(found)
    return found


def _row(
    row: PageRow,
    base: PageRow | None,
    arguments: Sequence[str],
    place: tuple[str, int],
    columns: Sequence[Column],
) -> RowView:
    summary, last, (anchor, number) = row.summary, row.last_run, place
    origin, title = _origin(row)
    failed = not summary.status.completed
    command = shlex.join(last.command) if last else ""
    again = command_for_stack(arguments, summary.stack, summary.tag or "") if command else ""
    reason = "; ".join(summary.reasons) if failed or row.runs.imported else ""
    return RowView(
        id=anchor,
        name=clipped(label(summary.stack, summary.sweep), 200),
        stack=summary.stack,
        number=number,
        row=row,
        cells=[_cell(column, row) for column in columns],
        origin=origin,
        origin_title=title,
        configuration=configuration(row, base) if summary.status.completed else (),
        reason=clipped(_last_line(reason)),
        command=again if FOLDER in command and again else command,
        shared_command=again or command,
        log=last.log_tail if last and failed else "",
        facts=list(_facts(row)),
        differences=_differences(row),
    )


def _cell(column: Column, row: PageRow) -> tuple[Column, tuple[str, ...], str]:
    parts = column.parts(row.summary)
    if column.key not in ("loss", "update", "verdict"):
        return column, parts, ""
    if parts[0] in PLAIN_WORDS:
        return column, parts, ""
    kind = "good" if parts[0] in GOOD_WORDS else "warn" if parts[0] in WARN_WORDS else "bad"
    return column, parts, kind


def _last_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _origin(row: PageRow) -> tuple[str, str]:
    """Return where the figures of a row come from, in short and in full."""
    run = row.last_run
    if run is None:
        return "not run", "there is no run of it"
    if run.imported:
        origin = run.provenance
        return "imported", f"from {origin.file} ({origin.format}): not measured here"
    origins = {one.provenance.origin for one in row.runs.counted.values()}
    word = "measured" if row.runs.completed else "run"
    where = f"{word} {'elsewhere' if 'exported' in origins else 'here'}"
    file = run.provenance.file
    title = f"it came with the export {file}" if file else "measured by this program"
    if not row.elsewhere:
        return where, title
    speeds = [math.exp(sum(map(math.log, one)) / len(one)) for one in row.elsewhere]
    others = f"{rate(min(speeds))} to {rate(max(speeds))}" if len(speeds) > 1 else rate(speeds[0])
    times = count(len(speeds), "other session")
    return f"{where}, again in {times}", f"the same experiment in {times}: {others} tokens/s"


def _facts(row: PageRow) -> Iterator[tuple[str, str]]:
    """Yield what the details of a row show."""
    summary = row.summary
    yield "experiment", summary.experiment_id or "never run"
    yield "status", f"{summary.status.value}, {count(summary.runs, 'completed run')}"
    yield "adds", summary.differs
    reasons = {
        "why": "; ".join(summary.reasons),
        "speed": summary.verdict_reason if summary.ratio is None else "",
        "loss": f"{summary.loss_verdict}: {summary.loss_reason}" if summary.loss_reason else "",
        "update": f"{summary.update_verdict}: {summary.update_reason}"
        if summary.update_reason
        else "",
        "provenance": _origin(row)[1],
        "disowned": "; ".join(summary.disowned),
        "in effect": ", ".join(text for text, _ in configuration(row, None)),
    }
    for key, text in reasons.items():
        if text and text != "this is the baseline":
            yield key, clipped(text, 2000)
    if summary.tokens:
        kinds = summary.tokens.per_step_global
        yield (
            "tokens in a step",
            f"{kinds.real:,.0f} real, {kinds.processed:,.0f} with padding, "
            f"{kinds.supervised:,.0f} with a loss",
        )
    if summary.utilization and summary.utilization.mfu:
        yield "MFU", f"{summary.utilization.mfu.causal:.1%}"
    for plugin in summary.plugins:
        shown = summary.evidence.get(plugin.name)
        said = shown.get("summary") if isinstance(shown, dict) else None
        if isinstance(said, str):
            yield plugin.name, clipped(said)
    if summary.start_up:
        yield "start", _start(summary.start_up.model_dump())


def _start(seconds: Mapping[str, float | None]) -> str:
    names = {key: key.removesuffix("_seconds").replace("_", " ") for key in seconds}
    return ", ".join(f"{names[key]} {value:.2g} s" for key, value in seconds.items() if value)


def _differences(row: PageRow) -> Table | None:
    found = [(one, "declared") for one in row.declared]
    found += [(one, "NOT DECLARED") for one in row.differing]
    if not found:
        return None
    rows = [
        (one.key, clipped(_value(one.a), 160), clipped(_value(one.b), 160), how)
        for one, how in found
    ]
    return listed(("differs from the baseline", "baseline", "this stack", ""), rows)


def _value(value: Any) -> str:
    return EMPTY if value is None else plain_value(value)


def _jobs(rows: Sequence[RowView]) -> Iterator[Job]:
    for row in rows:
        speed = row.row.summary.tokens_per_second
        if speed is None or row.why:
            continue
        ends = [EMPTY if end is None else end for end in (speed.low, speed.high)]
        low, high = ("" if end == EMPTY else end for end in ends)
        taken = duration(TOKENS / speed.median)
        yield Job(row, speed.median, low, high, rate_interval(speed), taken)


def _machine(machines: Sequence[Machine]) -> Table:
    """Return a column for each machine; of several first what differs."""
    if not machines:
        return listed(("fact", "value"), [("machine", "not recorded")])
    described = [_described(machine) for machine in machines]
    keys = dict.fromkeys(key for one in described for key in one)
    rows = [(key, *(one.get(key, EMPTY) for one in described)) for key in keys]
    rows.sort(key=lambda row: len(set(row[1:])) == 1)  # what differs comes first
    titles = ["fact", *(clipped(machine.host, 60) for machine in machines)]
    notes = ["what differs between the environments stands first"] if len(machines) > 1 else []
    table = listed(titles, rows)
    return Table(table.columns, table.rows, notes=notes)


def _environments(scenarios: Sequence[ScenarioPage]) -> Table | None:
    """Return the environments of several scenarios side by side, where they differ."""
    found: list[Machine] = []
    for machine in (machine for one in scenarios for machine in one.machines):
        if machine not in found:
            found.append(machine)
    if len(found) < 2 or len(scenarios) < 2:
        return None
    table = _machine(found)
    differing = [row for row in table.rows if len(set(row[1:])) > 1]
    title = "Environments of the selected runs, where they differ"
    return Table(table.columns, differing, title) if differing else None


def _described(machine: Machine) -> dict[str, str]:
    gpus = [f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in machine.gpus]
    facts = {
        "processor": f"{machine.processor}, {count(machine.cores, 'core')}",
        "memory": size(machine.memory_bytes),
        "GPUs": ", ".join(dict.fromkeys(f"{gpus.count(gpu)} x {gpu}" for gpu in gpus)),
        "driver": f"{machine.driver} (CUDA {machine.cuda})" if machine.driver else "",
        "system": machine.system,
        "python": machine.python,
        **machine.versions,
        **machine.libraries,
    }
    return {key: value for key, value in facts.items() if value}


def _overview(rows: Sequence[OverviewRow]) -> Table:
    def speed(row: OverviewRow) -> tuple[str, ...]:
        if not row.speeds:
            return (EMPTY,)
        speeds = [one.tokens_per_second for one in row.speeds]
        if len(speeds) == 1:
            return (rate(speeds[0]),)
        return rate(speeds[-1]), f"{rate(min(speeds))} to {rate(max(speeds))}"

    columns = [
        Column("scenario", lambda row: row.scenario, kind="name"),
        Column("stack", lambda row: row.stack, kind="name"),
        Column("point", lambda row: row.point or None, kind="name"),
        Column("device", lambda row: row.device or None, kind="name"),
        Column("runs", lambda row: sum(row.endings.values()), kind="number"),
        Column("ended", lambda row: ", ".join(f"{n} {word}" for word, n in row.endings.items())),
        Column("commands", lambda row: len(row.speeds), kind="number"),
        Column("speed", lambda row: row, unit="tokens/s, newest; least to most", form=speed,
               kind="number"),
        Column("memory", lambda row: row.peak_memory_bytes, unit="MiB", form=mebibytes,
               kind="number"),
        Column("newest", lambda row: time_text(row.newest)),
        Column("origin", lambda row: row.origin),
    ]  # fmt: skip
    ranked = sorted(rows, key=lambda row: (row.scenario, row.point, row.stack))
    more = len(ranked) - MOST_ROWS
    notes = ["speeds are medians within a command; those of several commands may be of different "
             "versions, and nothing is ranked by them"]  # fmt: skip
    notes += [f"{more:,} more rows are left out: `accel-bench results list --group-by "
              "scenario,stack,tag` has all"] if more > 0 else []  # fmt: skip
    return Table(columns, ranked[:MOST_ROWS], "By scenario, stack, sweep point and device", notes)


MOST_ROWS = 500
"""Rows of the overview that are shown."""
