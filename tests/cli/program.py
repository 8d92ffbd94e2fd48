"""Run the program as a user does: in this process where that is enough, in its own where it is
not."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from accel_bench.cli.main import main
from accel_bench.launcher import INTERRUPTIONS
from accel_bench.plugins.registry import installed
from accel_bench.testing import run_program

NULLS = """\
name: nulls
model: {use: null}
data: {use: null, sequence_length: 16}
optimizer: {use: null}
engine: {use: null}
stacks: {baseline: [], other: []}
measure: {warmup: 1, steps: 2, rounds: 1}
"""
"""A scenario that needs no torch: a run takes about half a second."""


class Done(NamedTuple):
    """How a call of the program ended."""

    code: Any
    """Exit code."""

    out: str
    """What stands on stdout."""

    err: str
    """What stands on stderr."""


def call(*arguments: str, folder: Path | None = None, **environment: str) -> Done:
    """Run the program in this process; what it starts are real processes.

    It runs in a folder, with these variables; with `PYTHONPATH`, it finds the plugins there.
    """
    if folder or environment:
        with surroundings(folder or Path.cwd(), environment):
            return call(*arguments)
    out, err = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in INTERRUPTIONS}
    code: Any = 0
    try:
        with (
            patch.object(sys, "argv", ["accel-bench", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def surroundings(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Give this process a folder, variables, and what `PYTHONPATH` holds, within the block."""
    imported, path = {*sys.modules}, environment.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        if path:
            patch.syspath_prepend(path)
            installed.cache_clear()
        yield
    if path:
        installed.cache_clear()
        for name in {*sys.modules} - imported:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{path}{os.sep}"):
                del sys.modules[name]


def start(*arguments: str, folder: Path | None = None, **environment: str) -> Done:
    """Run the program in a process of its own."""
    done = run_program(*arguments, folder=folder, environment=environment)
    return Done(done.returncode, done.stdout, done.stderr)


def write_nulls(folder: Path, file: str = "nulls.yaml", **changes: str) -> Path:
    """Write a scenario without torch; `changes` replace whole lines by their key."""
    lines = {line.partition(":")[0]: line for line in NULLS.splitlines()}
    lines.update({key: f"{key}: {value}" for key, value in changes.items()})
    path = folder / file
    path.write_text("\n".join(lines.values()) + "\n", encoding="utf8")
    return path
