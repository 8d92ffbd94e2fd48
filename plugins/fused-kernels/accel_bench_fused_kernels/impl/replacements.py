"""Replacement of attributes of modules and classes that can be undone exactly."""

from __future__ import annotations

from typing import Any

ABSENT = object()
"""Sentinel for the original value of an attribute that did not exist."""


class Replacements:
    """Record of the original values of replaced attributes, in the order of replacement."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    @property
    def changes(self) -> tuple[tuple[Any, str, Any], ...]:
        """Owner, name and original value of replaced attributes, in the order of replacement."""
        return tuple(self._before)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an instance, class or module, and record its original value."""
        self.note(owner, name, vars(owner).get(name, ABSENT))
        setattr(owner, name, value)

    def note(self, owner: Any, name: str, before: Any) -> None:
        """Record the original value `before` of an attribute of `owner` that other code has set."""
        self._before.append((owner, name, before))

    def undo(self) -> None:
        """Restore all attributes in reverse order; delete attributes that did not exist before."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is not ABSENT:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)
