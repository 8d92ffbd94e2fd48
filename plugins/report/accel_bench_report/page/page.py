"""A page about stored sessions, written by `report`, ready for HTML and Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from accel_bench.analysis.conclusion import conclusions
from accel_bench.analysis.session_command import command_for_stack
from accel_bench.analysis.wording import (
    TONES,
    count,
    duration,
    join_names,
    label,
    point_name,
    rate_interval,
    time_text,
)
from accel_bench.documents.files import slug
from accel_bench.documents.redaction import FOLDER
from accel_bench.report.table import EMPTY, Column
from accel_bench.report.views.run_table import (
    comparison_notes,
    doubts,
    extra_tables,
    speed_unit,
    stack_columns,
)
from accel_bench.result import EARLIEST, Status
from accel_bench_report.learning.view import learning_tables
from accel_bench_report.page.both_modes import both_modes_tables
from accel_bench_report.page.figures import figures_of, hardware_of, history_of, memory_unit
from accel_bench_report.page.memory_parts import memory_views
from accel_bench_report.page.model import (
    TOKENS,
    Group,
    Job,
    Page,
    RowView,
    ScenarioView,
    clipped,
)
from accel_bench_report.page.plot_svg import COLOURS
from accel_bench_report.page.plots import MISSING, plots_available
from accel_bench_report.page.scenario import PageRow, ScenarioPage, count_endings, status_word
from accel_bench_report.page.tables import (
    configuration,
    differences_table,
    machine_table,
    overview_table,
    row_facts,
    row_origin,
)
from accel_bench_report.page.waterfall import waterfalls
from accel_bench_report.tables.overview import OverviewRow

UNFINISHED = re.compile(r"^no experiment completed$| ended as interrupted$")
"""Pattern of clauses of the headline that are untrue while a session is running."""

LEFT_OUT = ("last loss", "status")
"""Columns left out of the table of stacks, since other parts of the page show them."""


def page(
    scenarios: Sequence[ScenarioPage],
    rows: Sequence[OverviewRow],
    notes: Sequence[str] = (),
    arguments: Sequence[str] = (),
    plots: bool = True,
) -> Page:
    """Return a page of scenarios in detail, and an overview of runs if there are several commands.

    `rows` are the rows of the overview, and `arguments` is the command line that writes the page.
    Without `plots` or matplotlib there are no plots; without matplotlib a note says so.
    """
    numbers = _numbers(scenarios, rows)
    draw = plots and plots_available()
    used: set[str] = set()
    views = [_scenario(scenario, numbers, used, draw) for scenario in scenarios]
    several = len(scenarios) > 1 or any(len(row.speeds) > 1 for row in rows) or not scenarios
    names = list(dict.fromkeys(scenario.summary.scenario for scenario in scenarios))
    missing = [MISSING] if plots and not draw else []
    return Page(
        title=join_names(names) if names else "all runs",
        written=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        scenarios=views,
        runs=f"{sum(sum(row.endings.values()) for row in rows):,}",
        overview=overview_table(rows) if several else None,
        history=[*history_of(rows, numbers), *hardware_of(rows, numbers)]
        if several and draw
        else (),
        both_modes=both_modes_tables(scenarios),
        notes=[*notes, *missing],
        made_by=f"Made by: {shlex.join(arguments)}" if arguments else "",
    )


def _numbers(scenarios: Sequence[ScenarioPage], rows: Sequence[OverviewRow]) -> dict[str, int]:
    """Return the colour number of each stack by name; baselines have 0, which is grey.

    Numbers follow the order of the page.
    """
    baselines = dict.fromkeys(scenario.summary.baseline for scenario in scenarios)
    names = [row.summary.stack for scenario in scenarios for row in scenario.rows]
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
    headline, *more = _answers(one)
    columns = [
        _with_kind(column, one)
        for column in stack_columns(one.summary)
        if column.header not in LEFT_OUT
    ]
    key = _unused(slug(one.summary.scenario), used)
    groups = list(_groups(one, numbers, key, used, columns))
    rows = [row for group in groups for row in group.rows]
    memories, memory_note = memory_views(rows)
    trained = speed_unit(one.summary) == "tokens/s"  # of calls there is no job of so many tokens
    return ScenarioView(
        id=key,
        name=one.summary.scenario,
        answer=_sentence(headline),
        doubts=doubts(one.summary),
        more=list(map(_sentence, more)),
        counts=_counts(one),
        measured=_measured(one),
        columns=columns,
        groups=groups,
        figures=figures_of(one, rows) if draw else (),
        waterfalls=waterfalls(rows, one.summary.baseline, TOKENS) if trained else (),
        memories=memories,
        memory_note=memory_note,
        jobs=list(_jobs(rows)) if trained else (),
        learning=list(learning_tables(one.learning)) if one.learning else (),
        tables=extra_tables(one.summary),
        machine=machine_table(one.machines),
        notes=comparison_notes(one.summary),
    )


def _answers(one: ScenarioPage) -> list[str]:
    """Return the headline and further sentences; a running session's progress comes first."""
    if one.running is None:
        return list(conclusions(one.summary))
    ended, planned = one.running
    of_planned = f" of {planned}" if planned else ""
    known = [text for text in conclusions(one.summary) if not UNFINISHED.search(text)]
    return [f"still running: {ended}{of_planned} runs have ended", *known]


def _with_kind(column: Column, one: ScenarioPage) -> Column:
    """Return the column. The unit of a memory column becomes the kind of memory if all rows have
    the same kind."""
    kinds = {row.peak_memory_kind for row in one.summary.experiments} - {None, ""}
    if column.header != "memory" or len(kinds) != 1:
        return column
    return replace(column, unit=memory_unit(kinds.pop()))


def _sentence(clause: str) -> str:
    return clause if clause.endswith(".") else f"{clause}."


def _counts(one: ScenarioPage) -> str:
    """Return text such as `8 stacks: 4 measured, 1 out of memory, 1 invalid`."""
    rows = one.rows
    stacks = len({row.summary.stack for row in rows})
    what = count(stacks, "stack")
    if len(one.points) > 1:
        what = f"{count(len(rows), 'experiment')} of {what} at {len(one.points)} sweep points"
    words = {status_word(Status.INTERRUPTED): "unfinished"} if one.running else {}
    endings = (f"{number} {words.get(word, word)}" for word, number in count_endings(rows))
    return f"{what}: {', '.join(endings)}"


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
        base = next((row for row in rows if row.summary.stack == one.summary.baseline), None)
        views = []
        for row in rows:
            anchor = _unused(f"row-{slug(f'{key}-{label(row.summary)}')}", used)
            link = (anchor, numbers[row.summary.stack])
            views.append(_row(row, base, one.arguments, link, columns))
        yield Group(point_name(first) if len(one.points) > 1 else "", views)


def _unused(name: str, used: set[str]) -> str:
    """Return the id `name`, with a number if `used` contains it, and add the result to `used`."""
    number, unique = 1, name
    while unique in used:
        number += 1
        unique = f"{name}-{number}"
    used.add(unique)
    return unique


def _row(
    row: PageRow,
    base: PageRow | None,
    arguments: Sequence[str],
    place: tuple[str, int],
    columns: Sequence[Column],
) -> RowView:
    summary, last, (anchor, number) = row.summary, row.last_run, place
    origin, title = row_origin(row)
    failed = not summary.status.completed
    command = shlex.join(last.command) if last else ""
    again = command_for_stack(arguments, summary.stack, summary.tag or "") if command else ""
    reason = "; ".join(summary.reasons) if failed or row.runs.imported else ""
    return RowView(
        id=anchor,
        name=clipped(label(summary), 200),
        stack=summary.stack,
        number=number,
        row=row,
        cells=[_cell(column, row) for column in columns],
        origin=origin,
        origin_title=title,
        configuration=configuration(row, base) if summary.status.completed else (),
        reason=clipped(" ".join(reason.split())),
        command=again if FOLDER in command and again else command,
        shared_command=again or command,
        log=last.log_tail if last and failed else "",
        facts=list(row_facts(row)),
        differences=differences_table(row),
    )


def _cell(column: Column, row: PageRow) -> tuple[Column, tuple[str, ...], str]:
    parts = column.parts(row.summary)
    judges = column.key in ("loss", "update", "output", "verdict")
    known = {EMPTY: "", **TONES}
    return column, parts, known.get(parts[0], "bad") if judges else ""


def _jobs(rows: Sequence[RowView]) -> Iterator[Job]:
    for row in rows:
        speed = row.row.summary.tokens_per_second
        if speed is None or row.why:
            continue
        low, high = ("" if end is None else end for end in (speed.low, speed.high))
        hours = duration(TOKENS / speed.median)
        yield Job(row, speed.median, low, high, rate_interval(speed), hours)
