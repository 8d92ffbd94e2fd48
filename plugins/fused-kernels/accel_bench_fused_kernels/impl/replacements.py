"""Attributes that were replaced, and how they are put back exactly."""

from __future__ import annotations

from typing import Any

ABSENT = object()
"""Stands for the value of an attribute that was not there."""


class Replacements:
    """What stood in the place of each replaced attribute, in the order of replacing."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute in the own dictionary of an instance, a class or a module."""
        self.note(owner, name, vars(owner).get(name, ABSENT))
        setattr(owner, name, value)

    def note(self, owner: Any, name: str, before: Any) -> None:
        """Remember what stood where somebody else has set an attribute."""
        self._before.append((owner, name, before))

    def undo(self) -> None:
        """Put everything back, the last first; an attribute that was not there goes again."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is not ABSENT:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)
