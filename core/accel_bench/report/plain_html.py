"""Sections as a plain HTML page: without scripts, all text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from accel_bench.documents.escaping import plain, printable
from accel_bench.documents.program import __version__
from accel_bench.report.table import Section, Table

STYLE = """\
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; display: block; margin: 1rem 0; overflow-x: auto }
caption { text-align: left }
th, td { border-bottom: 1px solid; padding: .2rem .6rem; text-align: left; vertical-align: top }
.number { text-align: right }
"""


def render_plain_html(sections: Sequence[Section]) -> str:
    """Return an HTML page with the headline, tables and notes of each section."""
    title = next((section.title for section in sections if section.title), "results")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f'<meta name="generator" content="accel-bench {__version__}">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'\">",
            f"<title>{_text(title)}</title>",
            f"<style>\n{STYLE}</style>",
            *(line for section in sections for line in _section(section)),
            "</html>\n",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield f"<h2>{_text(section.title)}</h2>"
    if section.headline:
        yield f"<p><strong>{_text(section.headline)}</strong></p>"
    if section.text:
        yield f"<pre>{escape(printable(section.text))}</pre>"
    for table in section.tables:
        yield from _table(table)
    yield from _notes(section.notes)


def _table(table: Table) -> Iterator[str]:
    kinds = [' class="number"' if column.kind == "number" else "" for column in table.columns]
    headers = [" ".join(filter(None, (column.header, column.unit))) for column in table.columns]
    if headers:
        yield "<table>"
        yield f"<caption>{_text(table.title)}</caption>" if table.title else ""
        yield _row("th", kinds, headers)
        for row in table.rows:
            yield _row("td", kinds, [column.text(row) for column in table.columns])
        yield "</table>"
    yield from _notes(table.notes)


def _row(tag: str, kinds: Sequence[str], cells: Sequence[str]) -> str:
    inner = (f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>"


def _text(text: str) -> str:
    return escape(plain(text))
