"""The one model of everything that is shown: tables with columns, in sections, in a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter, methodcaller
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from accel_bench.documents.escaping import plain

EMPTY = "-"
"""Stands for null: there is no number, which is not 0."""

STACKED = re.compile(r" (?=[±\[(]|to )")
"""Blanks in a number at which an interval, a remark or a range may go on in the next line."""


def text_of(value: Any) -> str:
    """Return a value as people read it: settings as `key=value`, lists in one line."""
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
    """One column: programs read `cell`, people read what `form` makes of it."""

    key: str
    """Name in CSV, and the title unless there is one."""

    cell: Callable[[Any], Any]
    """Return the value of a row."""

    title: str = ""
    """Header for people."""

    unit: str = ""
    """Unit of the cells, or what else stands under the title."""

    form: Callable[[Any], str | tuple[str, ...]] = text_of
    """Return a value as people read it; parts of it may stand below one another."""

    kind: Literal["text", "name", "word", "number"] = "text"
    """How a narrow terminal treats it: text is wrapped, a name folded; the others stay whole."""

    rank: int = 0
    """Order in which a narrow terminal gives columns up, the highest first; 0 is always shown."""

    @property
    def header(self) -> str:
        """Title for people."""
        return plain(self.title or self.key)

    def parts(self, row: Any) -> tuple[str, ...]:
        """Return the parts of a row's cell, each on one line."""
        value = self.cell(row)
        form = EMPTY if value is None else self.form(value)
        if isinstance(form, str):
            form = tuple(STACKED.split(form)) if self.kind == "number" else (form,)
        return tuple(map(plain, form))

    def text(self, row: Any) -> str:
        """Return the cell of a row as people read it, on one line."""
        return " ".join(self.parts(row))


@dataclass(frozen=True)
class Table:
    """Rows of one kind, the columns that read them, and what the columns leave unsaid."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """What is shown of one thing, in the order of reading: the answer, tables, notes."""

    title: str = ""
    answer: str = ""

    text: str = ""
    """Lines that are printed as they are, such as YAML or a command."""

    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """One content for all formats."""

    sections: Sequence[Section] = ()
    """For people: the terminal and Markdown."""

    document: Any = None
    """For programs: pydantic models, or plain JSON values."""

    flat: Table = field(default_factory=lambda: Table((), ()))
    """For spreadsheets: one row for each thing, units in the keys of columns."""

    width: int | None = None
    """Columns of the page where the output is no terminal; without one nothing is wrapped."""


class Line(SimpleNamespace):
    """A row of several documents, each under a name with which the paths of columns begin."""


def one_or_list(documents: Sequence[Any]) -> Any:
    """Return a single document itself, several as a list."""
    return documents[0] if len(documents) == 1 else list(documents)


def keyed(keys: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of mappings, a column for each key; a key that a row lacks is null."""
    return Table([_column(key, methodcaller("get", key), rows) for key in keys], rows)


def entry(key: str, title: str = "", **says: Any) -> Column:
    """Return a column of mappings: the value of a key, null if a row lacks it."""
    return Column(key, methodcaller("get", key), title, **says)


def listed(headers: Iterable[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table of sequences whose items stand in the order of the headers."""
    rows = list(rows)
    return Table([_column(key, itemgetter(place), rows) for place, key in enumerate(headers)], rows)


def _column(key: str, cell: Callable[[Any], Any], rows: Sequence[Any]) -> Column:
    """Return a column that is one of numbers if all its cells are."""
    found = {type(value) for value in map(cell, rows) if value is not None}
    return Column(key, cell, kind="number" if found and found <= {int, float} else "text")


def paths(prefix: str, names: str, key: str = "{}") -> list[Column]:
    """Return a column for each attribute in `names`, which are separated by spaces.

    Rows are read at `prefix.name`; where a part of that is null, so is the cell.
    """
    return [Column(key.format(name), reader(f"{prefix}.{name}")) for name in names.split()]


def number_column(
    path: str,
    title: str = "",
    unit: str = "",
    form: Callable[[Any], str | tuple[str, ...]] = text_of,
    rank: int = 0,
) -> Column:
    """Return a column of numbers that are read at a dotted path of attributes."""
    return Column(path, reader(path), title, unit, form, kind="number", rank=rank)


def in_units(columns: Sequence[Column], counts: Iterable[str]) -> list[Column]:
    """Return columns whose units, and titles that are units, are those of what was counted."""
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
    """Return a column for each field of a document's model, in its order; rows have it at `path`.

    A document within has a column for each of its own fields, behind the name of the outer field;
    documents in lists are rows of their own, and have none. `names` chooses fields and `without`
    leaves out others; both are separated by spaces.
    """
    chosen, left_out = names.split(), without.split()
    assert {*chosen, *left_out} <= model.model_fields.keys()
    found: list[Column] = []
    for name, kind in model.model_fields.items():
        if kind.exclude or name in left_out or name not in (chosen or [name]):
            continue
        parts = (kind.annotation, *get_args(kind.annotation))
        documents = [one for one in parts if hasattr(one, "model_fields")]
        if documents and get_origin(kind.annotation) in (None, Union, UnionType):
            found += columns_of(documents[0], f"{path}.{name}", f"{key.format(name)}_{{}}")
        elif not documents:
            found.append(Column(key.format(name), reader(f"{path}.{name}")))
    return found


def reader(path: str) -> Callable[[Any], Any]:
    """Return a function that reads a dotted path of attributes; null ends it."""
    names = path.strip(".").split(".")

    def read(value: Any) -> Any:
        for name in names:
            if value is None:
                return None
            value = getattr(value, name)
        return value

    return read
