"""A real Ray cluster for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from faults.program import wait_for

PROGRAM = Path(__file__).with_name("ray_cluster.py")


@dataclass
class Cluster:
    """A cluster that runs."""

    address: str
    process: psutil.Process
    temporary: Path

    def left_behind(self) -> list[object]:
        """Return remaining actors and rank folders after a while."""
        wait_for(lambda: not self.hosts(), give_up=10.0)
        return [*self.hosts(), *self.temporary.glob("accel-bench-*")]

    def hosts(self) -> list[psutil.Process]:
        """Return the actors on its nodes."""
        return [one for one in self.process.children(recursive=True) if is_host(one)]

    def worker_of(self, host: psutil.Process) -> psutil.Process:
        """Return the process of Ray's node of an actor."""
        raylet = host.parent()
        assert raylet is not None
        return raylet


def is_host(process: psutil.Process) -> bool:
    """Return whether a process is an actor of the launcher's."""
    try:
        return process.cmdline()[0].startswith("ray::Host")
    except (psutil.Error, IndexError):
        return False


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start a cluster of two workers, and end it; it also ends with this process."""
    # Ray's sockets lie in the folder, and their paths are limited to 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-")
    command = [sys.executable, str(PROGRAM), folder]
    temporary = Path(folder, "temporary")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "Ray's cluster has not started"
            yield Cluster(address, psutil.Process(process.pid), temporary)
        finally:
            process.stdin.close()
            process.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster
