"""Run the program as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_program(
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `accel-bench` with these arguments in a folder; return its exit code and output.

    It is run by this interpreter, with the variables of `environment` beside those of this process,
    and for at most `seconds`. Git does not find the checkout: to save a file while the program runs
    would change the ids of its experiments.

    Raises subprocess.TimeoutExpired.
    """
    return subprocess.run(
        [sys.executable, "-m", "accel_bench", *arguments],
        env={**os.environ, "GIT_DIR": os.devnull, **(environment or {})},
        cwd=folder,
        timeout=seconds,
        capture_output=True,
        text=True,
        check=False,
    )
