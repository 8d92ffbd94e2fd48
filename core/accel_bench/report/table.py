"""Classes for all output: a report has sections, these have tables, and tables have columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from operator import itemgetter, methodcaller
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from accel_bench.documents.escaping import plain

EMPTY = "-"
"""Text for null: there is no number, which is not 0."""

STACKED = re.compile(r" (?=[±\[(]|to )")
"""Pattern of blanks in a number after which an interval, a remark or a range may wrap."""


def text_of(value: Any) -> str:
    """Return a value as text for people: settings as `key=value`, lists in one line."""
    if isinstance(value, str) and value and not isinstance(value, Enum):
        return value
    if value is None or value in ("", [], (), {}):
        return EMPTY
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return str(value)


@dataclass(frozen=True)
class Column:
    """One column of a table: `cell` gives the value for programs, `form` its text for people."""

    key: str
    """Key of the column in CSV, and the default of its title."""

    cell: Callable[[Any], Any]
    """Function that returns the value of a row's cell."""

    title: str = ""
    """Header for people."""

    unit: str = ""
    """Unit of the cells, or another line below the title."""

    form: Callable[[Any], str | tuple[str, ...]] = text_of
    """Function that returns a value as text for people; its parts may stand below one another."""

    kind: Literal["text", "name", "word", "number"] = "text"
    """Treatment on a narrow terminal: text is wrapped, a name folded; the others stay whole."""

    rank: int = 0
    """Order in which a narrow terminal leaves columns out, the highest first; 0 is always shown."""

    @property
    def header(self) -> str:
        """Title of the column for people, by default the key."""
        return plain(self.title or self.key)

    def parts(self, row: Any) -> tuple[str, ...]:
        """Return the parts of a row's cell, each on one line."""
        value = self.cell(row)
        form = EMPTY if value is None else self.form(value)
        if isinstance(form, str):
            form = tuple(STACKED.split(form)) if self.kind == "number" else (form,)
        return tuple(map(plain, form))

    def text(self, row: Any) -> str:
        """Return the cell of a row as text for people, on one line."""
        return " ".join(self.parts(row))


@dataclass(frozen=True)
class Table:
    """Rows of one kind, the columns that read them, and notes."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """Section of a report, in the order of reading: headline, tables, notes."""

    title: str = ""
    headline: str = ""

    text: str = ""
    """Lines that are printed unchanged, such as YAML or a command."""

    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """Report in the forms that output formats need: sections, a document and a flat table."""

    sections: Sequence[Section] = ()
    """Sections for people: the terminal and Markdown."""

    document: Any = None
    """Document for programs: pydantic models, or plain JSON values."""

    flat: Table = field(default_factory=lambda: Table((), ()))
    """Table for spreadsheets: one row for each item, with units in the keys of columns."""

    width: int | None = None
    """Width of the page without a terminal, in columns; None wraps nothing."""


class Line(SimpleNamespace):
    """Row that holds several documents by name; a column's path begins with a document's name."""


def one_or_list(documents: Sequence[Any]) -> Any:
    """Return the only document if there is just one, else a list of all documents."""
    return documents[0] if len(documents) == 1 else list(documents)


def keyed(keys: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table whose rows are mappings: a column for each key, null where a row lacks it."""
    return Table([_column(key, methodcaller("get", key), rows) for key in keys], rows)


def entry(key: str, title: str = "", **fields: Any) -> Column:
    """Return a column that shows `row[key]`, null if missing; `fields` are fields of `Column`."""
    return Column(key, methodcaller("get", key), title, **fields)


def listed(headers: Iterable[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table whose rows are sequences, with their items in the order of the headers."""
    rows = list(rows)
    return Table([_column(key, itemgetter(place), rows) for place, key in enumerate(headers)], rows)


def _column(key: str, cell: Callable[[Any], Any], rows: Sequence[Any]) -> Column:
    types = {type(value) for value in map(cell, rows) if value is not None}
    return Column(key, cell, kind="number" if types and types <= {int, float} else "text")


def paths(prefix: str, names: str, key: str = "{}") -> list[Column]:
    """Return a column for each attribute name in `names`, a text with spaces between the names.

    A column reads `prefix.name` from a row, and is null if any attribute on this path is null. Its
    key is `key` with the name in place of `{}`.
    """
    return [Column(key.format(name), reader(f"{prefix}.{name}")) for name in names.split()]


def number_column(
    path: str,
    title: str = "",
    unit: str = "",
    form: Callable[[Any], str | tuple[str, ...]] = text_of,
    rank: int = 0,
) -> Column:
    """Return a column of the numbers at `path` in each row, a dotted path of attributes."""
    return Column(path, reader(path), title, unit, form, kind="number", rank=rank)


def in_units(columns: Sequence[Column], counts: Iterable[str]) -> list[Column]:
    """Return columns whose titles and units have the nouns in `counts` in place of `tokens`."""
    # The program's help has tables, and no results: it imports what they are made of in vain.
    from accel_bench.analysis.wording import rate_unit

    known = set(counts)
    return [
        replace(
            column,
            title=rate_unit(known, column.header) if "/" in column.header else column.title,
            unit=rate_unit(known, column.unit),
        )
        for column in columns
    ]


def columns_of(
    model: Any, path: str = "", key: str = "{}", names: str = "", without: str = ""
) -> list[Column]:
    """Return a column for each field of the pydantic model `model`, in the model's order.

    Rows have the document at the dotted path `path`. A field that is itself a document gives a
    column for each of its own fields, whose keys begin with the outer field's name; a list of
    documents gives none. `key` is the columns' key, with `{}` in place of the field's name. `names`
    chooses fields and `without` leaves out fields, both as texts with spaces between the names.
    """
    chosen, left_out = names.split(), without.split()
    assert {*chosen, *left_out} <= model.model_fields.keys()
    columns: list[Column] = []
    for name, kind in model.model_fields.items():
        if kind.exclude or name in left_out or name not in (chosen or [name]):
            continue
        parts = (kind.annotation, *get_args(kind.annotation))
        documents = [part for part in parts if hasattr(part, "model_fields")]
        if documents and get_origin(kind.annotation) in (None, Union, UnionType):
            columns += columns_of(documents[0], f"{path}.{name}", f"{key.format(name)}_{{}}")
        elif not documents:
            columns.append(Column(key.format(name), reader(f"{path}.{name}")))
    return columns


def read_at(find: Callable[[Any], Any], *columns: Column) -> tuple[Column, ...]:
    """Return columns that read the object `find(row)` in place of the row; null if it is None."""

    def cell(column: Column, row: Any) -> Any:
        item = find(row)
        return None if item is None else column.cell(item)

    return tuple(replace(column, cell=partial(cell, column)) for column in columns)


def reader(path: str) -> Callable[[Any], Any]:
    """Return a function that follows a dotted path of attributes, and stops at the first None."""
    names = path.strip(".").split(".")

    def read(value: Any) -> Any:
        for name in names:
            if value is None:
                return None
            value = getattr(value, name)
        return value

    return read
