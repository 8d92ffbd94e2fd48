"""Changes of environment variables for a run, which are restored afterwards."""

from __future__ import annotations

import os


class Variables:
    """Recorder of changed environment variables, which can restore their values."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def remember(self, *names: str) -> None:
        """Record the present values of variables that other code is about to set."""
        for name in names:
            self._before.setdefault(name, os.environ.get(name))

    def set(self, name: str, value: str) -> None:
        """Set a variable, replacing its present value."""
        self.remember(name)
        os.environ[name] = value

    def offer(self, name: str, value: str) -> None:
        """Set a variable only if the environment does not have it yet."""
        if name not in os.environ:
            self.set(name, value)

    def put_back(self) -> None:
        """Restore the value that each variable had before it was first set or recorded."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before.clear()
