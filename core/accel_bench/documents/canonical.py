"""Canonical JSON (the same text for equal values), its digest, and checks for unstorable values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

MAXIMUM_NUMBER = 1e100
"""Largest absolute value of a number in computations."""

MAXIMUM_DIGITS = 40
"""Largest number of digits in a JSON text."""

MAXIMUM_LEVELS = 100
"""Largest depth of a stored value; parsers of JSON stop at 200."""

_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, without spaces or NaN: equal values give equal text."""
    return _ENCODER.encode(value)


def digest(value: Any, length: int = 12) -> str:
    """Return the first `length` hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def unreadable_part(value: Any, *place: str | int) -> str:
    """Return a text with the path and the fault of the first value inside `value` that JSON cannot
    preserve; it is empty if there is none. `place` is the path of `value` in its document."""
    if len(place) > MAXIMUM_LEVELS:
        return f"{_dotted(place[:3])}... is nested deeper than {MAXIMUM_LEVELS} levels"
    if isinstance(value, dict):
        keys = (unreadable_part(str(key), *place) for key in value)
        parts = (unreadable_part(part, *place, str(key)) for key, part in value.items())
        return next(filter(None, (*keys, *parts)), "")
    if isinstance(value, list | tuple):
        parts = (unreadable_part(part, *place, number) for number, part in enumerate(value))
        return next(filter(None, parts), "")
    if fault := _fault(value):
        return f"{_dotted(place)} {fault}".lstrip()
    return ""


def whole_text(text: str) -> str:
    r"""Return the text with each lone surrogate as an escape such as `\ud800`, so that UTF-8 can
    encode it."""
    return text.encode("utf8", "backslashreplace").decode("utf8")


def _fault(value: Any) -> str:
    """Return the reason why JSON cannot preserve a text or a number; an empty text if it can."""
    if isinstance(value, str):
        if not value.isascii() and whole_text(value) != value:
            return f"holds half a character: {value[:30]!a}"
    elif isinstance(value, int):
        if abs(value) >= 10**MAXIMUM_DIGITS:
            return f"is an integer of more than {MAXIMUM_DIGITS} digits"
    elif isinstance(value, float) and not abs(value) < MAXIMUM_NUMBER:
        return f"is {value}, beyond what can be computed with"
    return ""


def _dotted(place: Sequence[str | int]) -> str:
    return whole_text(".".join(map(str, place)))
