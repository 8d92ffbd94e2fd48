"""The document of a pivot: experiments arranged in one table by their settings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from pydantic import Field

from accel_bench.analysis.quantity import Better
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Status
from accel_bench_report.tables.expenses import Terms
from accel_bench_report.tables.keyed import Values


class PivotValue(Frozen):
    """A figure shown in the cells."""

    name: str
    """Name of the figure."""

    unit: str
    """Unit of the figure."""

    better: Better
    """Better direction: `higher`, `lower` or `neither`."""


class PivotCell(Frozen):
    """Cell of a pivot table, which holds one experiment."""

    row: Values
    """Values of the row keys."""

    column: Values
    """Values of the column keys; empty without column keys."""

    experiment_id: str
    """Identity of the experiment."""

    stack: str
    """Name of the stack."""

    status: Status
    """Status of the experiment."""

    word: str
    """Word in the cell in place of figures, such as `OOM`; empty for a measured experiment."""

    origin: str
    """Origin: `measured`, or `imported` or `exported` with the format."""

    reasons: tuple[str, ...] = ()
    """Reasons of a status other than `ok`."""

    runs: int
    """Number of completed runs."""

    figures: dict[str, Interval | None] = Field(default_factory=dict)
    """Figures by name with 95 % intervals over runs, if any; null if unknown, and empty for a cell
    with a word."""

    paired: bool = False
    """True if `times_as_fast` is paired by round; else it is a Welch interval of unpaired runs."""

    why_not_compared: str = ""
    """Reason for a missing `times_as_fast`."""


class Pivot(Document):
    """Table of experiments, each in exactly one cell; none are averaged."""

    row_keys: tuple[str, ...]
    """Keys of the rows."""

    column_keys: tuple[str, ...]
    """Keys of the columns."""

    added_keys: tuple[str, ...] = ()
    """Row keys that were added automatically, since experiments differ in them."""

    shared: dict[str, JsonValue] = Field(default_factory=dict)
    """Main settings that are equal in all experiments."""

    rows: tuple[Values, ...]
    """Values of the row keys for each row, in order."""

    columns: tuple[Values, ...]
    """Values of the column keys for each column, in order."""

    values: tuple[PivotValue, ...]
    """Figures shown in each cell."""

    cells: tuple[PivotCell, ...]
    """Cells, by row and column."""

    counts: dict[str, int]
    """Number of `measured` experiments, and of others by the word in their cell."""

    reference: dict[str, JsonValue] = Field(default_factory=dict)
    """Key values of the reference cells of comparisons, other keys being equal."""

    terms: Terms = Terms()
    """Price and number of tokens for costs and hours."""

    notes: tuple[str, ...] = ()
    """Reasons for cells without figures, and caveats of costs."""

    def cell(self, row: Values, column: Values = ()) -> PivotCell | None:
        """Return the cell at given row and column values; None if empty."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)

    def by_row(self) -> Iterator[tuple[Values, dict[Values, PivotCell]]]:
        """Yield the row-key values of each row, with its cells by column values."""
        for values, cells in groupby(self.cells, key=lambda cell: cell.row):
            yield values, {cell.column: cell for cell in cells}
