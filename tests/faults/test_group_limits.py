"""Limits of a real control group: a kill for memory is `oom`, and a quota of CPUs counts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults.program import Program, null_scenario, wait_for, write_scenario

from accel_bench.machine.cgroup import MEMBERSHIP, MOUNT
from accel_bench.result import Status

LIMIT_BYTES = 600 * 2**20
"""More than the program and a sound worker need."""

PERIOD_US = 100_000


@contextmanager
def group_of(controller: str, old_file: str, old_text: str, file: str, text: str) -> Iterator[Path]:
    """Make a control group with a limit; the test is skipped where none can be made."""
    paths = dict(line.split(":", 2)[1:] for line in MEMBERSHIP.read_text().splitlines())
    old = controller in paths
    parent = MOUNT / controller if old else MOUNT
    folder = parent / paths.get(controller, paths.get("", "/")).lstrip("/") / secrets.token_hex(8)
    try:
        folder.mkdir()
        (folder / (old_file if old else file)).write_text(old_text if old else text)
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    assert wait_for(lambda: not (folder / "cgroup.procs").read_text(), give_up=10.0)
    folder.rmdir()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with LIMIT_BYTES of memory."""
    limit = str(LIMIT_BYTES)
    with group_of("memory", "memory.limit_in_bytes", limit, "memory.max", limit) as folder:
        yield folder


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    """A control group that may use one CPU."""
    quota = str(PERIOD_US)
    with group_of("cpu", "cpu.cfs_quota_us", quota, "cpu.max", f"{quota} {quota}") as folder:
        yield folder


def test_a_kill_by_the_kernel_is_oom_with_the_limit(program: Program, memory_group: Path) -> None:
    stacks = {"baseline": [], "hog": [{"use": "faulty", "fault": "hog"}]}
    path = write_scenario(program.folder / "scenario.yaml", null_scenario(stacks))
    finished = program.finish(
        program.start(
            *("run", str(path), "--quiet"),
            preexec_fn=lambda: (memory_group / "cgroup.procs").write_text(str(os.getpid())),
        )
    )
    row = finished.result("hog")
    assert row.status is Status.OOM, row.reasons
    assert row.reasons == (
        "ended by SIGKILL in window after 3 steps, without a result: the kernel killed it for "
        "memory at the limit of its control group, 600 MiB",
    )
    assert finished.result("baseline").status is Status.OK


def test_ranks_beyond_the_quota_of_the_group_are_refused(program: Program, cpu_group: Path) -> None:
    scenario = {**null_scenario({"baseline": []}), "resources": {"devices": 2}}
    path = write_scenario(program.folder / "scenario.yaml", scenario)
    finished = program.finish(
        program.start(
            *("run", str(path), "--dry-run"),
            preexec_fn=lambda: (cpu_group / "cgroup.procs").write_text(str(os.getpid())),
        )
    )
    assert finished.code == 2
    assert "2 processes would share 1 core;" in finished.err
