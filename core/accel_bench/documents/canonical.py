"""Canonical JSON: one text for equal values, and its digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, without spaces or NaN: equal values give equal text."""
    return _ENCODER.encode(value)


def digest(value: Any, length: int = 12) -> str:
    """Return the first `length` hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]
