"""Trials of steps whose processes are forked from one that has imported torch."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REFERENCE = HERE / "steps" / "reference.py"
STEPS = 7


@pytest.fixture(scope="session")
def nursery() -> Iterator[Any]:
    """Return the function that starts the process of a step."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(HERE / "nursery.py"), str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=[there.fileno()], stderr=subprocess.DEVNULL)
    there.close()

    def start(settings: dict[str, Any], descriptors: tuple[int, ...], environment: Any) -> int:
        wanted = {k: environment[k] for k in ("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR")}
        socket.send_fds(here, [json.dumps([settings, wanted]).encode()], descriptors)
        return int(here.recv(32))

    with here, process:
        yield start
        here.close()


Take = Callable[..., Any]


@pytest.fixture
def take_steps(nursery: Any, tmp_path: Path) -> Take:
    """Return a function that takes steps of a file; it returns the trial, which has ended."""
    from accel_bench_judge.trial_impl import Trial

    def take(file: Path, reference: Path = REFERENCE, steps: int = STEPS, **options: Any) -> Trial:
        trial = Trial(str(reference), str(file), tmp_path / "cache", start=nursery, **options)
        try:
            trial.count()
            for number in range(steps):
                if number == 1:
                    trial.watch()
                trial.begin()
                trial.keep(trial.ask())
        finally:
            trial.end()
        return trial

    return take
