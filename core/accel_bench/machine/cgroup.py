"""Read the memory limit of this process's control group, and how often the kernel enforced it.

Both versions of Linux's control groups are read: `memory.oom_control` of version 1 and
`memory.events` of version 2, as the kernel's admin guide describes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MEMBERSHIP = Path("/proc/self/cgroup")
"""Lists the groups of this process: `4:memory:/group` in version 1, `0::/group` in version 2."""

MOUNT = Path("/sys/fs/cgroup")
"""Where the groups are mounted; those of version 1 in a folder for each controller."""

UNLIMITED_BYTES = 2**60
"""Version 1 writes the largest number of pages where there is no limit."""


class MemoryGroup(NamedTuple):
    """The memory of the control group that this process and its children are in."""

    kills: int
    """Processes of the group that the kernel has killed for want of memory; 0 where it does not
    count them."""

    limit_bytes: int | None
    """Smallest limit of the group and of those that it is in; None without one."""


def read_memory_group() -> MemoryGroup | None:
    """Return the group of this process; None where there is none."""
    try:
        lines = [line.split(":", 2) for line in MEMBERSHIP.read_text().splitlines()]
    except OSError:
        return None
    paths = {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}
    if "memory" in paths:
        return _read(MOUNT / "memory", paths["memory"], "oom_control", "limit_in_bytes")
    return _read(MOUNT, paths.get("", "/"), "events", "max")


def _read(mount: Path, path: str, events: str, limit: str) -> MemoryGroup | None:
    """Read a group; in a container without a view of its own the mount itself is the group."""
    folder = mount / path.lstrip("/")
    if ".." in path or not folder.is_dir():
        folder = mount
    within = [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]
    # Where the controller is off in the group itself, the next one above it counts.
    counters = filter(None, (_text(one / f"memory.{events}") for one in within))
    counts = dict(line.split() for line in next(counters, "").splitlines())
    kills = counts.get("oom_kill", "0")
    texts = [_text(one / f"memory.{limit}").strip() for one in within]
    limits = [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED_BYTES]
    return MemoryGroup(int(kills) if kills.isdigit() else 0, min(limits, default=None))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
