"""Entry points for sections: further tables of a comparison, and keys of its JSON document.

A distribution adds a section by an entry point of the group `accel_bench.sections` whose value is
a module. Its function `document(summary, rows)` gets the comparison of the stacks, and the runs of
each planned experiment. It returns a list of mappings, or None for no section. The JSON document
has the list under the section's name, and a table has a row for each mapping, by its keys.
The module may also have:

- `tables(summary, document)`, which returns tables in place of the default one;
- `notes(summary, document)`, which returns notes on the stacks, and
  `details(summary, document, row)`, the lines of `--verbose` on one stack;
- `compared(summary, document)`, which returns the noun for what the section compares, such as
  `sweep points`, for the headline if no stacks are compared; else an empty text;
- `STACK_COLUMNS`, columns of the table of stacks, and `CSV_COLUMNS`, columns of the CSV;
- `SHOWN_METRICS`, names of metrics in its tables, which the table of metrics leaves out.

Sections of accel-bench itself are made for every comparison, others if they are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import Summary
from accel_bench.errors import AccelBenchError
from accel_bench.plugins.doors import DoorEntry, find_entries, find_entry

GROUP = "accel_bench.sections"
"""Group of the entry points for sections."""

KIND = "section"
"""Word for an entry of the group in error messages."""


def with_sections(
    summary: Summary, rows: Sequence[ExperimentRuns], names: Sequence[str]
) -> Summary:
    """Return a summary with the documents of accel-bench's own sections and of the sections
    `names`. A section that fails becomes a notice."""
    ours = [entry.name for entry in find_entries(GROUP, KIND).values() if entry.is_ours]
    documents: dict[str, Any] = {}
    notices = []
    for name in dict.fromkeys((*ours, *names)):
        try:
            entry = find_entry(GROUP, KIND, name)
            document = call_section(entry, "document", summary, rows)
            if document is None:
                continue
            _check(entry, document)
            documents[name] = document
        except AccelBenchError as error:
            notices.append(f"left out: {error}")
    update = {"sections": documents, "notices": (*summary.notices, *notices)}
    return summary.model_copy(update=update)


def compared_by_sections(summary: Summary) -> str:
    """Return the plural noun for what a section compares in place of stacks, or an empty text."""
    for name, document in summary.sections.items():
        with suppress(AccelBenchError):  # Notices name what fails.
            entry = find_entry(GROUP, KIND, name)
            known = hasattr(entry.load(), "compared")
            if known and (text := call_section(entry, "compared", summary, document)):
                return str(text)
    return ""


def call_section(entry: DoorEntry, name: str, *arguments: Any) -> Any:
    """Call a section's function `name` and return its value; a PluginError names the section."""
    function = getattr(entry.load(), name, None)
    if function is None:
        raise entry.broken(f"{entry.point.value} has no function {name!r}")
    with entry.blamed():
        return function(*arguments)


def _check(entry: DoorEntry, document: Any) -> None:
    """Raise PluginError for a document that is no list of mappings, unless `tables` renders it."""
    rows = isinstance(document, Sequence) and all(isinstance(row, Mapping) for row in document)
    if not rows and not hasattr(entry.load(), "tables"):
        raise entry.broken("its document is no list of mappings, and it has no function 'tables'")
