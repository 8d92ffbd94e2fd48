"""Attributes that were replaced, and how they are put back exactly."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Replacements:
    """What stood in the place of each replaced attribute, in the order of replacing."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __len__(self) -> int:
        return len(self._before)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute in the own dictionary of an instance, a class or a module."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, the last first; an attribute that was not there goes again."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is not _ABSENT:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)
