"""Environment variables that a run changes, and what they were before."""

from __future__ import annotations

import os


class Variables:
    """Changes of the environment that can be taken back."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def remember(self, *names: str) -> None:
        """Note what variables are now, since something else is going to set them."""
        for name in names:
            self._before.setdefault(name, os.environ.get(name))

    def set(self, name: str, value: str) -> None:
        """Set a variable, whoever has set it before."""
        self.remember(name)
        os.environ[name] = value

    def offer(self, name: str, value: str) -> None:
        """Set a variable unless somebody has set it."""
        if name not in os.environ:
            self.set(name, value)

    def put_back(self) -> None:
        """Make everything as it was when it was first set or remembered."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before.clear()
