"""The program: its version, in one place, and the command of the Python that runs it."""

import sys

__version__ = "0.1.0"


def python_command(*arguments: str) -> list[str]:
    """Return a command of this interpreter that imports nothing from the working folder.

    Python 3.10 lacks the option; there `accel_bench` takes the folder off the path when it is
    imported by `-m`.
    """
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, *arguments]
