"""Memory and CPU limits of this process's Linux control group, and its out-of-memory kills.

Both versions of Linux's control groups are read: `memory.oom_control` and `cpu.cfs_quota_us` of
version 1, `memory.events` and `cpu.max` of version 2, as the kernel's admin guide describes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MEMBERSHIP = Path("/proc/self/cgroup")
"""File that lists this process's control groups: `4:memory:/group`, or `0::/group`."""

MOUNT = Path("/sys/fs/cgroup")
"""Folder at which control groups are mounted; in version 1 with a folder for each controller."""

UNLIMITED_BYTES = 2**60
"""Limit in bytes that counts as unlimited: version 1 writes the largest number of pages."""


class MemoryGroup(NamedTuple):
    """Memory limit and out-of-memory kills of the control group of this process."""

    kills: int
    """Number of the group's processes that the kernel killed for lack of memory; 0 if uncounted."""

    limit_bytes: int | None
    """Smallest memory limit of the group and its ancestors, in bytes; None without a limit."""


def read_memory_group() -> MemoryGroup | None:
    """Return the memory limit and kills of this process's control group; None if unreadable."""
    controlled = _groups("memory")
    if controlled is None:
        return None
    version, groups = controlled
    events, limit = ("oom_control", "limit_in_bytes") if version == 1 else ("events", "max")
    # Where the controller is off in the group itself, the next one above it counts.
    counters = filter(None, (_text(group / f"memory.{events}") for group in groups))
    counts = dict(line.split() for line in next(counters, "").splitlines())
    kills = counts.get("oom_kill", "0")
    texts = [_text(group / f"memory.{limit}").strip() for group in groups]
    limits = [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED_BYTES]
    return MemoryGroup(int(kills) if kills.isdigit() else 0, min(limits, default=None))


def read_cpu_limit() -> float | None:
    """Return the number of CPUs that this process and its children may use; None without a limit.

    A control group allows quota / period CPUs. The smallest number among its ancestors counts.
    """
    version, groups = _groups("cpu") or (2, [])
    if version == 1:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = [" ".join(_text(group / name).strip() for name in names) for group in groups]
    else:
        texts = [_text(group / "cpu.max") for group in groups]
    # `max` and -1 are no limit.
    quotas = [text.split() for text in texts]
    pairs = [pair for pair in quotas if len(pair) == 2 and all(map(str.isdigit, pair))]
    return min((int(quota) / int(period) for quota, period in pairs if int(period)), default=None)


def _groups(controller: str) -> tuple[int, list[Path]] | None:
    """Return the control groups' version (1 or 2), and the folders of the group and its ancestors.

    `controller` is `memory` or `cpu`. Returns None if `/proc` lists no groups. In a container that
    hides the group's path, the mount point counts as the group.
    """
    try:
        lines = [line.split(":", 2) for line in MEMBERSHIP.read_text().splitlines()]
    except OSError:
        return None
    paths = {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}
    version, mount = (1, MOUNT / controller) if controller in paths else (2, MOUNT)
    path = paths.get(controller, paths.get("", "/"))
    folder = mount / path.lstrip("/")
    if ".." in path or not folder.is_dir():
        folder = mount
    above = (parent for parent in folder.parents if parent.is_relative_to(mount))
    return version, [folder, *above]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
