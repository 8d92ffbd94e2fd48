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
    """A figure that the cells hold."""

    name: str
    """Name of the figure."""

    unit: str
    """Its unit."""

    better: Better
    """Which of two values is the better one."""


class PivotCell(Frozen):
    """One experiment at its place: exactly one for each experiment."""

    row: Values
    """Values of the row keys."""

    column: Values
    """Values of the column keys; empty where there are none."""

    experiment_id: str
    """Identity of the experiment."""

    stack: str
    """Name of the stack."""

    status: Status
    """How the experiment ended."""

    word: str
    """What stands in the cell in place of figures, such as `OOM`; empty where it was measured."""

    origin: str
    """`measured`, or with the format `imported` and `exported`."""

    reasons: tuple[str, ...] = ()
    """Why the status is not `ok`."""

    runs: int
    """Completed runs."""

    figures: dict[str, Interval | None] = Field(default_factory=dict)
    """Every figure by name, with its 95 % interval over runs where it has one; null where it is not
    known, and empty where a word stands in its place."""

    paired: bool = False
    """True if `times_as_fast` is of pairs within rounds; else it is Welch's of unpaired runs."""

    why_not_compared: str = ""
    """Why there is no `times_as_fast`, where there is none."""


class Pivot(Document):
    """Experiments in one table; every one stands in exactly one cell, and none is averaged."""

    row_keys: tuple[str, ...]
    """Keys whose values make the rows."""

    column_keys: tuple[str, ...]
    """Keys whose values make the columns."""

    added_keys: tuple[str, ...] = ()
    """Row keys that were added, since experiments differ in them."""

    shared: dict[str, JsonValue] = Field(default_factory=dict)
    """Main settings that all experiments have in common."""

    rows: tuple[Values, ...]
    """Values of the row keys, a tuple for each row, in order."""

    columns: tuple[Values, ...]
    """Values of the column keys, a tuple for each column, in order."""

    values: tuple[PivotValue, ...]
    """Figures of each cell."""

    cells: tuple[PivotCell, ...]
    """Experiments, in the order of rows and columns."""

    counts: dict[str, int]
    """Experiments by `measured`, or by the word that stands in their cell."""

    reference: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of keys of the cell with which others are compared, all else being equal."""

    terms: Terms = Terms()
    """Price and number of tokens that money and hours are worked out with."""

    notes: tuple[str, ...] = ()
    """Why cells have no figures, and what makes costs less certain than they seem."""

    def cell(self, row: Values, column: Values = ()) -> PivotCell | None:
        """Return the experiment at a place; None where there is none."""
        return next((one for one in self.cells if (one.row, one.column) == (row, column)), None)

    def by_row(self) -> Iterator[tuple[Values, dict[Values, PivotCell]]]:
        """Yield the values of each row with its cells by the values of their columns."""
        for values, cells in groupby(self.cells, key=lambda cell: cell.row):
            yield values, {cell.column: cell for cell in cells}
