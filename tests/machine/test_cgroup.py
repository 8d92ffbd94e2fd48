"""The limits of a control group and the kernel's count of kills, in both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_bench.machine import cgroup
from accel_bench.machine.cgroup import MemoryGroup, read_cpu_limit, read_memory_group
from accel_bench.machine.info import available_cores, read_machine

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


def write_cpu(folder: Path, **files: str) -> None:
    """Write files of a group's CPU controller as the kernel does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(text, encoding="utf8")


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on sixteen cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("own", "above", "limit", "cores"),
    [
        ("max 100000\n", "max 100000\n", None, 16),
        ("400000 100000\n", "max 100000\n", 4.0, 4),
        ("max 100000\n", "250000 100000\n", 2.5, 2),
        ("25000 50000\n", "3200000 100000\n", 0.5, 1),
        ("3200000 100000\n", "", 32.0, 16),
    ],
)
def test_version_2_limits_cpus_by_the_smallest_quota(
    mount: Path, own: str, above: str, limit: float | None, cores: int
) -> None:
    cgroup.MEMBERSHIP.write_text("0::/user.slice/bench\n")
    write_cpu(mount / "user.slice", max=above)
    write_cpu(mount / "user.slice" / "bench", max=own)
    assert read_cpu_limit() == limit
    assert available_cores() == read_machine().cores == cores


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize("path", ["/bench", "/docker/0123"])
def test_version_1_limits_cpus_by_quota_and_period(mount: Path, path: str) -> None:
    cgroup.MEMBERSHIP.write_text(f"5:cpu,cpuacct:{path}\n4:memory:/bench\n0::/\n")
    write_cpu(mount / "cpu", cfs_quota_us="-1\n", cfs_period_us="100000\n")
    (mount / "cpu" / "bench").mkdir()
    assert (read_cpu_limit(), available_cores()) == (None, 16)
    group = mount / "cpu" / ("bench" if path == "/bench" else "")
    write_cpu(group, cfs_quota_us="300000\n", cfs_period_us="100000\n")
    assert (read_cpu_limit(), available_cores()) == (3.0, 3)


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize("text", ["", "nothing\n", "100000 0\n"])
def test_without_a_readable_quota_there_is_no_limit(mount: Path, text: str) -> None:
    assert (read_cpu_limit(), available_cores()) == (None, 16)
    cgroup.MEMBERSHIP.write_text("0::/\n")
    write_cpu(mount, max=text)
    assert (read_cpu_limit(), available_cores()) == (None, 16)


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
