"""A worker that the kernel kills at the limit of its control group is out of memory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.program import Program, null_scenario, wait_for, write_scenario

from accel_bench.machine.cgroup import MEMBERSHIP, MOUNT
from accel_bench.result import Status

LIMIT_BYTES = 600 * 2**20
"""More than the program and a sound worker need."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with this limit; tests are skipped where none can be made."""
    paths = dict(line.split(":", 2)[1:] for line in MEMBERSHIP.read_text().splitlines())
    old = "memory" in paths
    parent = MOUNT / "memory" if old else MOUNT
    folder = parent / paths.get("memory", paths.get("", "/")).lstrip("/") / secrets.token_hex(8)
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if old else "memory.max")
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    assert wait_for(lambda: not (folder / "cgroup.procs").read_text(), give_up=10.0)
    folder.rmdir()


def test_a_kill_by_the_kernel_is_oom_with_the_limit(program: Program, group: Path) -> None:
    stacks = {"baseline": [], "hog": [{"use": "faulty", "fault": "hog"}]}
    path = write_scenario(program.folder / "scenario.yaml", null_scenario(stacks))
    finished = program.finish(
        program.start(
            *("run", str(path), "--quiet"),
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
    )
    row = finished.result("hog")
    assert row.status is Status.OOM, row.reasons
    assert row.reasons == (
        "ended by SIGKILL in window after 3 steps, without a result: the kernel killed it for "
        "memory at the limit of its control group, 600 MiB",
    )
    assert finished.result("baseline").status is Status.OK
