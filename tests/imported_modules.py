"""What a program imports, seen from a process of its own."""

from __future__ import annotations

import subprocess
import sys


def imported(program: str, among: set[str]) -> set[str]:
    """Return those of the modules that a Python program has imported when it ends."""
    code = f"import sys\n{program}\nprint(*({among!r} & set(sys.modules)), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
