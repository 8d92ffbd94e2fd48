"""A table as CSV: plain values, harmless in a spreadsheet."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from enum import Enum
from io import StringIO
from typing import Any

from accel_bench.documents.shown import printable
from accel_bench.report.table import Table

FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a text begins that spreadsheets would run; some take the wide forms of East Asia too."""


def render_csv(table: Table) -> str:
    """Return a header and a line for each row; null is an empty cell."""
    if not table.columns:
        return ""
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow([_cell(column.key) for column in table.columns])
    writer.writerows([_cell(column.cell(row)) for column in table.columns] for row in table.rows)
    return output.getvalue()


def _cell(value: Any) -> Any:
    """Return a number as it is, anything else as text that no spreadsheet takes for a formula."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        value = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = printable(value.replace("\r\n", "\n").replace("\r", "\n"))
    formula = text.startswith("\t") or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{text}" if formula else text
