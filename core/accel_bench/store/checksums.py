"""Checksums of rows, by which a damaged one is found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from accel_bench.documents.canonical import digest

Columns = dict[str, Any]
"""A row of a table by column name."""


SHA256_DIGITS = 64
"""Hex digits of a whole checksum."""


CONTENTS = ("result", "samples")
"""What is stored of a run beside its columns, by the names that `schema.reading` gives them."""


def content_checksum(document: bytes, samples: bytes) -> str:
    """Return the checksum of what is stored of a run beside its columns."""
    return hashlib.sha256(document + samples).hexdigest()


def with_checksum(columns: Columns) -> Columns:
    """Return the columns with their checksum; columns that are null are no part of it."""
    return {**columns, "checksum": _checksum(columns)}


def _checksum(columns: Mapping[str, Any]) -> str:
    # Columns that a later version adds are null in rows of this one.
    known = {name: value for name, value in columns.items() if value is not None}
    return digest(known, SHA256_DIGITS)


def intact(columns: Mapping[str, Any]) -> bool:
    """Return whether the columns match their checksum, and the content of a run its own."""
    own = dict(columns)
    checksum, *contents = (own.pop(name, None) for name in ("checksum", *CONTENTS))
    try:
        if _checksum(own) != checksum:
            return False
    except (TypeError, ValueError):
        # A flipped bit can also turn a column into bytes or NaN, which JSON does not have.
        return False
    return contents == [None, None] or content_checksum(*contents) == columns["content_checksum"]
