"""Change environment variables for a run, and restore them afterwards."""

from __future__ import annotations

import os


class Variables:
    """Reversible changes of environment variables."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def remember(self, *names: str) -> None:
        """Record the values of variables that other code is about to set."""
        for name in names:
            self._before.setdefault(name, os.environ.get(name))

    def set(self, name: str, value: str) -> None:
        """Set a variable, whether or not it is set."""
        self.remember(name)
        os.environ[name] = value

    def offer(self, name: str, value: str) -> None:
        """Set a variable unless it is set."""
        if name not in os.environ:
            self.set(name, value)

    def put_back(self) -> None:
        """Restore every variable to its value when it was first set or remembered."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before.clear()
