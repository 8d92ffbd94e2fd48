"""Sections as Markdown, for an issue, a README or the summary of a CI job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from accel_bench.documents.escaping import plain
from accel_bench.report.table import Section, Table

_MARKUP = re.compile(r"([\\`*\[\]|<>&#~]|(?<!\w)_|_(?!\w))")


def render_markdown(sections: Sequence[Section]) -> str:
    """Return Markdown with a heading, the headline, tables and notes for each section."""
    blocks = [block for section in sections for block in _blocks(section)]
    return "\n\n".join(blocks) + "\n" if blocks else ""


def escape(text: str) -> str:
    """Return text safe inside a table: one line, without markup, HTML or cell separators."""
    return _MARKUP.sub(r"\\\1", plain(text))


def _blocks(section: Section) -> Iterator[str]:
    """Yield the parts of a section as Markdown, to be separated by empty lines."""
    if section.title:
        yield f"## {escape(section.title)}"
    if section.headline:
        yield f"**{escape(section.headline)}**"
    if section.text:
        yield "\n".join(f"    {plain(line)}" for line in section.text.splitlines())
    for table in section.tables:
        if table.title:
            yield f"### {escape(table.title)}"
        yield _table(table)
        yield from _notes(table.notes)
    yield from _notes(section.notes)


def _table(table: Table) -> str:
    headers = [" ".join(filter(None, (column.header, column.unit))) for column in table.columns]
    rows = [[escape(column.text(row)) for column in table.columns] for row in table.rows]
    lines = [list(map(escape, headers)), ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield "\n".join(f"- {escape(note)}" for note in notes)
