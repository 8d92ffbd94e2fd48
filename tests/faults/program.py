"""Run the program on a scenario without torch, and look at what it leaves behind.

It runs in this process where its end is waited for, in its own where that is interrupted.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.program import call

from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.store.database import open_store
from accel_bench.store.sqlite import FILE_NAME

MARK = "FAULT_SUITE"
"""Environment variable by which everything that a program has started is found."""

PATIENCE_SECONDS = 60.0
"""How long something is waited for that must happen; much longer than it takes."""


def null_scenario(stacks: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A scenario that needs no torch; `changes` replace top-level keys."""
    return {
        "name": "faults",
        "model": {"use": "null"},
        "data": {"use": "null", "sequence_length": 16},
        "optimizer": {"use": "null"},
        "engine": {"use": "null", "step_seconds": 0.005},
        "metrics": [],
        "stacks": dict(stacks),
        "measure": {"warmup": 2, "steps": 4, "rounds": 1},
        **changes,
    }


def write_scenario(path: Path, scenario: Mapping[str, Any]) -> Path:
    """Write it; JSON is YAML too."""
    path.write_text(json.dumps(scenario, indent=1, ensure_ascii=False), encoding="utf8")
    return path


@dataclass
class Program:
    """The program with a results folder of its own."""

    folder: Path
    """Where scenario and results lie."""

    site: Path
    """Where the distributions of this test are installed."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables."""

    python: str = sys.executable
    """The interpreter that it runs in."""

    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    """Value of `MARK` in the program and in everything that it starts."""

    started: list[subprocess.Popen[str]] = field(default_factory=list)
    """Programs that were started, to be ended when a test fails half-way."""

    @property
    def results_folder(self) -> Path:
        """Where the program keeps results."""
        return self.folder / "results"

    def variables(self) -> dict[str, str]:
        """Return what the program finds in its environment beside what this process has."""
        return {
            # Git must not find the checkout: a file saved while this runs would change every id.
            "GIT_DIR": os.devnull,
            MARK: self.mark,
            **self.environment,
            "PYTHONPATH": str(self.site),
            "ACCEL_BENCH_RESULTS": str(self.results_folder),
        }

    def start(self, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
        """Start it and do not wait."""
        variables = {**os.environ, **self.variables()}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [self.python, "-m", "accel_bench", *arguments]
        process = subprocess.Popen(command, env=variables, cwd=self.folder, text=True, **streams)
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> Finished:
        """Wait for its end."""
        out, err = process.communicate(timeout=10 * PATIENCE_SECONDS)
        return Finished(self, process.returncode, out or "", err or "")

    def call(self, *arguments: str) -> Finished:
        """Run it to its end, in this process unless it has an interpreter of its own.

        What it starts are processes in either case.
        """
        if self.python != sys.executable:
            return self.finish(self.start(*arguments))
        done = call(*arguments, folder=self.folder, **self.variables())
        return Finished(self, done.code or 0, done.out, done.err)

    def call_apart(self, *arguments: str) -> Finished:
        """Run it to its end in a process of its own: for plugins that end theirs."""
        return self.finish(self.start(*arguments))

    def run(self, scenario: Mapping[str, Any], *arguments: str) -> Finished:
        """`run` a scenario."""
        path = write_scenario(self.folder / "scenario.yaml", scenario)
        return self.call("run", str(path), *arguments)

    def results(self) -> list[Result]:
        """All rows, in order; none where there is no database yet."""
        try:
            with open_store(self.results_folder, write=False) as store:
                return store.results()
        except StoreError:
            return []

    def count(self) -> int:
        """Number of rows, read without checking the database: for a loop that waits."""
        path = self.results_folder / FILE_NAME
        if not path.exists():
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            try:
                return int(database.execute("SELECT count(*) FROM runs").fetchone()[0])
            except sqlite3.OperationalError:  # There is no table yet.
                return 0

    def processes(self) -> list[int]:
        """Every live process that the program has started, itself included.

        It carries the mark in its environment, or as an argument.
        """
        wanted = {f"{MARK}={self.mark}".encode(), self.mark.encode()}
        return [number for number, texts in _texts() if wanted & texts]

    def end(self) -> None:
        """End what a failed test has left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def left_behind(self) -> list[int]:
        """Processes that are still there after a while."""
        if wait_for(lambda: not self.processes(), give_up=5.0):
            return []
        return self.processes()


@dataclass(frozen=True)
class Finished:
    """How the program has ended."""

    program: Program
    code: int
    out: str
    err: str

    @property
    def results(self) -> list[Result]:
        """All rows."""
        return self.program.results()

    @property
    def document(self) -> Any:
        """What `--format json` printed."""
        return json.loads(self.out)

    def result(self, stack: str) -> Result:
        """The only row of a stack."""
        (found,) = [row for row in self.results if row.experiment.stack.name == stack]
        return found

    def log(self, stack: str, rank: int = 0) -> str:
        """A rank's log."""
        folder = self.program.results_folder / self.result(stack).folder
        return (folder / f"rank{rank}.log").read_text(encoding="utf8")


def wait_for(
    condition: Callable[[], Any], give_up: float = PATIENCE_SECONDS, pause: float = 0.05
) -> bool:
    """Whether it became true."""
    until = time.monotonic() + give_up
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
    return True


def _texts() -> Iterator[tuple[int, set[bytes]]]:
    """Variables and arguments of the processes that can be read; a dead one has none left."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            texts = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            yield int(folder.name), set(texts.split(b"\0"))
        except OSError:
            continue
