"""Checksums of rows, by which a damaged one is found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.documents.canonical import digest

Columns = dict[str, Any]
"""A row of a table by column name."""


SHA256_DIGITS = 64
"""Hex digits of a whole checksum."""


def content_checksum(document: bytes, samples: bytes) -> str:
    """Return the checksum of what is stored of a run beside its columns."""
    return hashlib.sha256(document + samples).hexdigest()


def with_checksum(columns: Columns) -> Columns:
    """Return all columns of a row in the order of their names, with their checksum."""
    ordered = dict(sorted(columns.items()))
    return {**ordered, "checksum": _checksum([*ordered.values()])}


def _checksum(values: list[Any]) -> str:
    # A value's place is its name: texts of names would double the time.
    return digest(values, SHA256_DIGITS)


def intact(columns: Mapping[str, Any], contents: Sequence[Any] = ()) -> bool:
    """Return whether the columns match their checksum, and the contents of a run their own.

    They are those of a whole row, in the order in which `schema.within_limits` reads them, and the
    contents behind them, if any.
    """
    values = [*columns.values()]
    own = len(values) - len(contents) - 1
    try:
        if _checksum(values[:own]) != values[own]:
            return False
    except (TypeError, ValueError):
        # A flipped bit can also turn a column into bytes or NaN, which JSON does not have.
        return False
    return not contents or content_checksum(*contents) == columns["content_checksum"]
