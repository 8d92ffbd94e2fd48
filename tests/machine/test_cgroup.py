"""The memory limit of a control group and the kernel's count of kills, in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bench.machine import cgroup
from accel_bench.machine.cgroup import MemoryGroup, read_memory_group
from accel_bench.machine.info import read_machine

EVENTS = "low 0\nhigh 0\nmax 52\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
NO_LIMIT = "9223372036854771712\n"


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where groups are mounted, and beside it what lists those of this process."""
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path / "cgroup"


def write(folder: Path, **files: str) -> None:
    """Write files of a group as the kernel does, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text, encoding="utf8")


def test_version_2_counts_kills_and_the_smallest_limit_above_counts(mount: Path) -> None:
    cgroup.MEMBERSHIP.write_text("0::/user.slice/bench\n")
    write(mount / "user.slice", events=EVENTS.format(9), max="2147483648\n")
    write(mount / "user.slice" / "bench", events=EVENTS.format(2), max="max\n")
    assert read_memory_group() == MemoryGroup(kills=2, limit_bytes=2**31)


def test_version_1_counts_kills_and_its_largest_number_is_no_limit(mount: Path) -> None:
    cgroup.MEMBERSHIP.write_text("5:cpu,cpuacct:/x\n4:memory:/bench\n0::/\n")
    write(mount / "memory", oom_control=CONTROL.format(0), limit_in_bytes=NO_LIMIT)
    group = mount / "memory" / "bench"
    write(group, oom_control=CONTROL.format(1), limit_in_bytes="1073741824\n")
    assert read_memory_group() == MemoryGroup(kills=1, limit_bytes=2**30)
    write(group, limit_in_bytes=NO_LIMIT)
    assert read_memory_group() == MemoryGroup(kills=1, limit_bytes=None)


@pytest.mark.parametrize("path", ["/docker/0123", "/../../elsewhere"])
def test_in_a_container_that_is_shown_another_path_the_mount_is_the_group(
    mount: Path, path: str
) -> None:
    cgroup.MEMBERSHIP.write_text(f"0::{path}\n")
    write(mount, events=EVENTS.format(4), max="512\n")
    assert read_memory_group() == MemoryGroup(kills=4, limit_bytes=512)


def test_a_limit_counts_where_the_kernel_does_not_count_kills(mount: Path) -> None:
    assert read_memory_group() is None
    cgroup.MEMBERSHIP.write_text("0::/\n")
    write(mount, max="1048576\n")
    assert read_memory_group() == MemoryGroup(kills=0, limit_bytes=2**20)
    write(mount, events="low 0\noom 1\n")  # before Linux 4.13
    assert read_memory_group() == MemoryGroup(kills=0, limit_bytes=2**20)
    assert read_machine().memory_bytes == 2**20


def test_where_the_controller_is_off_in_the_group_the_next_one_above_counts(mount: Path) -> None:
    cgroup.MEMBERSHIP.write_text("0::/user.slice/bench\n")
    write(mount / "user.slice", events=EVENTS.format(9), max="2147483648\n")
    (mount / "user.slice" / "bench").mkdir()
    assert read_memory_group() == MemoryGroup(kills=9, limit_bytes=2**31)
