"""Names of a run's stored values: columns, options, metrics, tags."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import JSON, Column, ColumnElement, Float, Text, and_, case, cast, exists, func, or_

from accel_bench.errors import StoreError
from accel_bench.store.schema import COLUMN_OF, DERIVED, LABELS, RUNS, SETTINGS

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

IDENTITY = {
    **dict.fromkeys("run_id session experiment_id scenario stack sweep started_at".split(), str),
    **dict.fromkeys("round position attempt".split(), int),
}
"""Columns that identify a run, with their types."""

ALIASES = {"status": "audited_status", "model": "model.id"}
"""Short names of columns, each with the full name."""

OPTION_ALIASES = {"task": "task.use"}
"""Short names of options, each with the full name."""

_STEPS_PER_SECOND = (
    RUNS.c.tokens_per_second
    * cast(RUNS.c.steps, Float(53))
    / func.nullif(cast(RUNS.c.real_tokens, Float(53)), 0)
)

COMPUTED: dict[str, ColumnElement[Any]] = {
    "tokens_per_hour": RUNS.c.tokens_per_second * 3600,
    "steps_per_second": _STEPS_PER_SECOND,
    "samples_per_second": _STEPS_PER_SECOND * RUNS.c.train_global_batch_size,
}
"""Figures without a column, computed from other columns."""

LABEL_KINDS = {"tags": "tag", "notes": "note"}
"""Kinds of labels by field: labels are texts that people give to runs."""

TRUTHS = {"true": ("true", "1"), "false": ("false", "0")}
"""Texts by which databases and users write true and false."""

_OPTION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")


class Field:
    """Stored value of runs, such as a column, that conditions and groups can use."""

    def __init__(self, name: str, kind: type, value: ColumnElement[Any]) -> None:
        self.name = name
        """Full name of the field."""
        self.kind = kind
        self.value = value
        """Expression of the field's value, by which runs are grouped."""

    def compare(self, sign: str, text: str) -> ColumnElement[bool]:
        """Return the condition that compares the field with a user's value by an operator such as
        `<=`. The operator `~` compares with a pattern. Raises StoreError for a value of the wrong
        type."""
        if sign == "~":
            return _like(cast(self.value, Text), text)
        compared: ColumnElement[bool]
        compared = COMPARE[sign](self.value, _converted(self.name, self.kind, text))
        return compared

    def among(self, texts: Sequence[str]) -> ColumnElement[bool]:
        """Return the condition that the field has one of the given values. Raises StoreError for a
        value of the wrong type."""
        return self.value.in_([_converted(self.name, self.kind, text) for text in texts])

    def is_known(self) -> ColumnElement[bool]:
        """Return the condition that the field has a value."""
        return self.value.is_not(None)

    def shown(self, value: Any) -> Any:
        """Return a group's value of the field in the form that people read, such as true for 1."""
        return value


class JsonField(Field):
    """Field of a setting or a metric in a JSON column."""

    def __init__(self, name: str, sound: ColumnElement[Any], key: str, sqlite: bool) -> None:
        path = f'$."{key}"'
        member = cast(sound, JSON)[key]
        kind = func.json_type(sound, path) if sqlite else func.json_typeof(member)
        value = func.json_extract(sound, path) if sqlite else member.as_string()
        truth = (kind == "true", "true"), (kind == "false", "false")
        super().__init__(name, str, case(*truth, else_=value) if sqlite else value)
        self._text = cast(value, Text)
        self._is_text = kind.in_(("text", "string"))
        self._is_truth = kind.in_(("true", "false", "boolean"))
        self._is_number = kind.in_(("integer", "real", "number"))
        # PostgreSQL would not read a text as a number, and `and` does not keep it from trying.
        self._number = case((self._is_number, cast(value, Float(53))))

    def compare(self, sign: str, text: str) -> ColumnElement[bool]:
        """Return the condition that compares the field with `text`, as a number if it is one."""
        if sign == "~":
            return _like(self._text, text)
        if sign == "=":
            return self.among([text])
        number = _number(text)
        if number is None:
            return and_(self._is_text, COMPARE[sign](self._text, text))
        return and_(self._is_number, COMPARE[sign](self._number, number))

    def among(self, texts: Sequence[str]) -> ColumnElement[bool]:
        """Return the condition that the field has one of the values; 1 and 1.0 are equal."""
        truths = [spelt for text in texts for spelt in TRUTHS.get(text, ())]
        numbers = [number for text in texts if (number := _number(text)) is not None]
        others = [text for text in texts if text not in TRUTHS and _number(text) is None]
        compared = (
            (self._is_truth, self._text, truths),
            (self._is_number, self._number, numbers),
            (self._is_text, self._text, others),
        )
        return or_(*(and_(fits, own.in_(values)) for fits, own, values in compared if values))

    def shown(self, value: Any) -> Any:
        """Return a group's number as int or float, even if the database returns text."""
        number = _number(value) if isinstance(value, str) else value
        whole = isinstance(number, float) and number.is_integer()
        return value if number is None else int(number) if whole else number


class LabelField(Field):
    """Field of tags or notes; a comparison holds for a run if any of its labels matches."""

    def __init__(self, name: str) -> None:
        super().__init__(name, str, LABELS.c.text)
        self._own = and_(LABELS.c.run_id == RUNS.c.run_id, LABELS.c.kind == LABEL_KINDS[name])

    def compare(self, sign: str, text: str) -> ColumnElement[bool]:
        """Return the condition that any of a run's labels compares with a user's value."""
        return exists().where(self._own, super().compare(sign, text))

    def among(self, texts: Sequence[str]) -> ColumnElement[bool]:
        """Return the condition that any of a run's labels is one of the given texts."""
        return exists().where(self._own, super().among(texts))

    def is_known(self) -> ColumnElement[bool]:
        """Return the condition that a run has any labels."""
        return exists().where(self._own)


def known_names() -> dict[str, type]:
    """Return the names of all columns, as users write them, with their types."""
    names = {**IDENTITY, "status": str, **{column.name: column.kind for column in DERIVED}}
    names |= dict.fromkeys(COMPUTED, float)
    del names["audited_status"]
    return names


def column_field(name: str) -> Field | None:
    """Return the field of the column or label kind called `name`; None if there is none.

    The last part of a setting's name suffices if it is unique, and `optimizer` means
    `optimizer.use`. Raises StoreError for an ambiguous last part.
    """
    if name in LABEL_KINDS:
        return LabelField(name)
    if name in COMPUTED:
        return Field(name, float, COMPUTED[name])
    name = ALIASES.get(name, name)
    kinds = {**known_names(), "audited_status": str}
    spelled = {column: full for full, column in COLUMN_OF.items()}
    full = next((key for key in (name, f"{name}.use", spelled.get(name)) if key in kinds), None)
    if full is None:
        ends = [column.name for column in SETTINGS if column.name.endswith(f".{name}")]
        if len(ends) > 1:
            raise StoreError(f"{name!r} means several columns: {', '.join(ends)}")
        full = ends[0] if ends else None
    if full is None:
        return None
    return Field(full, kinds[full], RUNS.c[COLUMN_OF.get(full, full)])


def json_field(name: str, sqlite: bool, damaged: Sequence[str] = ()) -> Field | None:
    """Return the field of an option `plugin.option` or metric `metrics.name`; None for other names.
    `damaged` are ids of runs whose invalid JSON PostgreSQL must skip; SQLite finds such runs
    itself."""
    name = OPTION_ALIASES.get(name, name)
    if not _OPTION.fullmatch(name):
        return None
    section, _, rest = name.partition(".")
    if section == "metrics":
        return JsonField(name, _undamaged(RUNS.c.metrics, sqlite, damaged), rest, sqlite)
    return JsonField(name, _undamaged(RUNS.c.options, sqlite, damaged), name, sqlite)


def _undamaged(column: Column[str], sqlite: bool, damaged: Sequence[str]) -> ColumnElement[Any]:
    """Return a JSON column, null for invalid JSON; on PostgreSQL, null for the runs `damaged`."""
    if sqlite:
        return case((func.json_valid(column) == 1, column))
    return case((RUNS.c.run_id.not_in(damaged), column)) if damaged else column


def _converted(name: str, kind: type, text: str) -> Any:
    """Return a user's text converted to the type `kind`. Raises StoreError if it does not fit."""
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise StoreError(f"{name} is true or false, not {text!r}")
        return text.lower() == "true"
    number = _number(text)
    if number is None:
        raise StoreError(f"{name} is a number, and {text!r} is none")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _like(value: ColumnElement[Any], pattern: str) -> ColumnElement[bool]:
    """Return the SQL condition that a value matches a pattern with `*`, ignoring case."""
    escaped = re.sub(r"([\\%_])", r"\\\1", pattern.lower()).replace("*", "%")
    return func.lower(value).like(escaped, escape="\\")
