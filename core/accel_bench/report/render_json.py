"""A document as JSON."""

from __future__ import annotations

from typing import Any


def render_json(document: Any) -> str:
    """Return models and plain values as JSON; a number that is not finite is null in it."""
    from pydantic_core import to_json

    text = to_json(document, indent=2, inf_nan_mode="null", fallback=str)
    return text.decode() + "\n"
