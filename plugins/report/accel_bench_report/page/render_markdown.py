"""Rendering of a page as Markdown for a pull request's comment, with folded details."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from accel_bench.documents.escaping import plain
from accel_bench.report.render_markdown import escape
from accel_bench.report.table import EMPTY, Column, Table, listed
from accel_bench_report.page.model import Page, RowView, ScenarioView, clipped

MOST_CHARACTERS = 64_000
"""Maximum number of characters of the text; GitHub allows 65,536."""

ROOM_FOR_NOTE = 400
"""Number of characters reserved for the note about omitted contents."""

CELL_LETTERS = 160
"""Maximum number of characters in a table cell."""

COMMAND_LETTERS = 16_000
"""Maximum number of characters of all commands of a scenario together."""

LINE_LETTERS = 600
"""Maximum number of characters of a line of text."""

MOST_ROWS = 60
"""Maximum number of rows in a table."""


def render_page_markdown(page: Page) -> str:
    """Return the page as Markdown of less than 65,000 characters.

    Contents beyond that are omitted from the end, and a note says so.
    """
    blocks: list[str] = []
    room = MOST_CHARACTERS - ROOM_FOR_NOTE
    left_out = 0
    for block in _blocks(page):
        if left_out or len(block) + 2 > room:
            left_out += 1
            continue
        room -= len(block) + 2
        blocks.append(block)
    if left_out:
        blocks.append(
            f"_{left_out} more parts are left out, for which there is no room here; "
            "`accel-bench report --html FILE` has all._"
        )
    return "\n\n".join(blocks) + "\n"


def _blocks(page: Page) -> Iterator[str]:
    """Yield Markdown blocks: headlines and tables of all scenarios, then the collapsed details."""
    for part in page.scenarios:
        yield from _shown(part)
    for table in page.both_modes:
        title = f"## Training and inference: {_line(table.title)}"
        yield f"{title}\n\n{_table(table)}\n\n{_list(table.notes)}"
    for part in page.scenarios:
        yield from _folded_parts(part, len(page.scenarios) > 1)
    if page.overview:
        yield _folded(f"All {page.runs} selected runs", _table(page.overview))
    if page.notes:
        yield _list(page.notes)
    if page.made_by:
        yield f"<sub>{_line(page.made_by)}</sub>"


def _shown(part: ScenarioView) -> Iterator[str]:
    yield f"## {_line(part.name)}"
    yield f"**{_line(part.answer)}**"
    if part.doubts:
        yield _list(part.doubts)
    if part.more:
        yield _list(part.more)
    yield f"{_line(part.counts)} · {_line(part.measured)}"
    for group in part.groups:
        if group.title:
            yield f"### {_line(group.title)}"
        yield _table(Table(_columns(part), group.rows))


def _columns(part: ScenarioView) -> list[Column]:
    """Return the columns of the table of stacks, and a column of differences from the baseline."""
    figures = [
        Column(f"{column.header} {column.unit}".strip(), _reader(column)) for column in part.columns
    ]
    changed = Column("in effect, unlike the baseline", _changed)
    origin = Column("origin", lambda row: row.origin)
    return [Column("stack", lambda row: row.name), *figures, origin, changed]


def _reader(column: Column) -> Callable[[RowView], str]:
    return lambda row: column.text(row.row.summary)


def _changed(row: RowView) -> str:
    """Return a row's differences from the baseline, or the reason why it has no figures."""
    changed = ", ".join(text for text, differs in row.configuration if differs)
    why = f"not ranked: {row.why}" if row.why else ""
    return "; ".join(filter(None, (why, row.reason, changed))) or EMPTY


def _folded_parts(part: ScenarioView, named: bool) -> Iterator[str]:
    of = f" of {part.name}" if named else ""
    for waterfall in part.waterfalls:
        rows = [(bar.name, bar.value) for bar in waterfall.bars]
        if waterfall.fall.compile_seconds:
            spread = f"spread over {part.tokens} tokens"
            rows.append((f"compiling, {waterfall.fall.compile_text} {spread}", waterfall.added))
        title = f"Where the time goes: {waterfall.row.name}, for {waterfall.fall.unit}"
        yield _folded(title, _table(listed(("part", "milliseconds"), rows)))
    if part.memories:
        sizes = [
            (memory.row.name, memory.text, *(f"{item.name} {item.size}" for item in memory.parts))
            for memory in part.memories
        ]
        lines = [f"{name}: {text} ({'; '.join(parts)})" for name, text, *parts in sizes]
        yield _folded(f"Memory{of}", _list(lines))
    for table in (*part.learning, *part.tables):
        yield _folded(f"{table.title or 'Metrics'}{of}", f"{_table(table)}\n\n{_list(table.notes)}")
    for row in part.rows:
        if row.differences:
            title = f"Differences of {row.name} from the baseline"
            yield _folded(title, _table(row.differences))
    yield _folded(f"Machine and versions{of}", _table(part.machine))
    commands = _commands(part.rows)
    if commands:
        yield _folded(f"Each again{of}", commands)
    if part.notes:
        yield _folded(f"Notes{of}", _list(part.notes))


def _commands(rows: Sequence[RowView]) -> str:
    """Return the commands that repeat the rows; those beyond a total length are left out."""
    shown, left_out, room = [], 0, COMMAND_LETTERS
    for row in (row for row in rows if row.shared_command):
        text = f"{_cell(row.name)}:\n\n{_fenced(plain(row.shared_command))}"
        if len(text) > room:
            left_out += 1
            continue
        room -= len(text)
        shown.append(text)
    if left_out:
        shown.append(f"{left_out} more commands are left out, for which there is no room here.")
    return "\n\n".join(shown)


def _fenced(text: str) -> str:
    """Return a code block with a fence longer than any run of backticks in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}bash\n{text}\n{fence}"


def _folded(title: str, inside: str) -> str:
    # Its title is HTML, in which Markdown's escapes would be shown.
    return f"<details><summary>{_html(title)}</summary>\n\n{inside}\n\n</details>"


def _html(text: str) -> str:
    from markupsafe import escape as escape_html

    return str(escape_html(_clip(plain(text), CELL_LETTERS)))


def _table(table: Table) -> str:
    headers = [" ".join(filter(None, (column.header, column.unit))) for column in table.columns]
    lines = [[_cell(text) for text in headers], ["---"] * len(headers)]
    lines += [
        [_cell(column.text(row)) for column in table.columns] for row in table.rows[:MOST_ROWS]
    ]
    more = len(table.rows) - MOST_ROWS
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{more} more rows are left out." if more > 0 else text


def _cell(text: str) -> str:
    return _escaped(_clip(text, CELL_LETTERS))


def _line(text: str) -> str:
    return _escaped(_clip(text, LINE_LETTERS))


def _escaped(text: str) -> str:
    """Return text with Markdown escaped, and without mentions of users by `@name`."""
    return escape(text).replace("@", "&#64;")


def _list(lines: Sequence[str]) -> str:
    shown = [f"- {_line(line)}" for line in lines[:MOST_ROWS]]
    more = len(lines) - MOST_ROWS
    return "\n".join([*shown, *([f"- {more} more are left out"] if more > 0 else [])])


def _clip(text: str, most: int) -> str:
    return clipped(plain(text), most)
