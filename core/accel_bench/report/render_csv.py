"""A table as CSV: plain values, harmless in a spreadsheet."""

from __future__ import annotations

import csv
from io import StringIO

from accel_bench.documents.shown import spreadsheet_cell
from accel_bench.report.table import Table


def render_csv(table: Table) -> str:
    """Return a header and a line for each row; null is an empty cell."""
    if not table.columns:
        return ""
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow([spreadsheet_cell(column.key) for column in table.columns])
    writer.writerows(
        [spreadsheet_cell(column.cell(row)) for column in table.columns] for row in table.rows
    )
    return output.getvalue()
