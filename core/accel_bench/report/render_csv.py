"""A table as CSV: plain values, harmless in a spreadsheet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from accel_bench.documents.escaping import csv_line
from accel_bench.report.table import Column, Table


def render_csv(table: Table) -> str:
    """Return a table as CSV: a header and a line for each row, with empty cells for null."""
    return "".join(csv_lines(table.columns, table.rows))


def csv_lines(columns: Sequence[Column], rows: Iterable[Any]) -> Iterator[str]:
    """Yield the CSV header, then a CSV line for each row; yield nothing if there are no columns."""
    if not columns:
        return
    yield csv_line([column.key for column in columns])
    for row in rows:
        yield csv_line([column.cell(row) for column in columns])
