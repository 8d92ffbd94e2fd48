"""Confinement of a candidate's process before any of the candidate's code runs, on Linux alone.

Landlock forbids the process to write outside of two folders, to signal other processes, and to
access their memory. A filter of system calls forbids sockets, and the scheduling of other
processes. Neither can be undone, and child processes inherit both.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from typing import NamedTuple

from accel_bench_judge.system_calls import refuse_calls

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of Landlock's system calls, the same on all architectures that have them."""

VERSION_FLAG, PATH_BENEATH = 1, 1
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIGKILL = 9

WRITES = 0b01_1111_1111_0010
"""Landlock rights on files and folders: write, remove, make."""

REFER, TRUNCATE = 1 << 13, 1 << 14
"""Landlock rights to link between folders (version 2) and to shorten a file (version 3)."""

TCP, SCOPES = 0b11, 0b11
"""Landlock rights to bind and connect (version 4); scopes of sockets and signals (version 6)."""

CAPABILITY_VERSION = 0x20080522


class Confinement(NamedTuple):
    """Record of the confinement of a process, as far as its kernel supports it."""

    landlock: int = 0
    """Version of Landlock, or 0 without Landlock."""

    filtered: bool = False
    """True if a filter of system calls is active."""

    @property
    def gaps(self) -> list[str]:
        """Actions that the process can still do, such as `use sockets`."""
        missing = {
            "write files and read the memory of other processes": self.landlock < 1,
            "shorten files": 1 <= self.landlock < 3,
            "use sockets": not self.filtered,
            "signal other processes of yours": self.landlock < 6,
            "change the scheduling of accel-bench": not self.filtered,
        }
        return [what for what, is_missing in missing.items() if is_missing]


def confine(folders: Iterable[str]) -> Confinement:
    """Confine this process to computing, and to writing within the folders; return what the kernel
    supported.

    It must be called while the process has one thread, so that later threads inherit the rules.
    """
    if sys.platform != "linux":
        return Confinement()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _drop_capabilities(libc)
    version: int = libc.syscall(CREATE_RULESET, None, 0, VERSION_FLAG)
    landlock = version if version > 0 and _restrict(libc, version, folders) else 0
    return Confinement(landlock, refuse_calls())


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Drop the capabilities of root, by which one process may change another."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    libc.capset(ctypes.create_string_buffer(header), ctypes.create_string_buffer(24))


def _restrict(libc: ctypes.CDLL, version: int, folders: Iterable[str]) -> bool:
    rights = WRITES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", rights)
    attributes += struct.pack("=Q", TCP) if version >= 4 else b""
    attributes += struct.pack("=Q", SCOPES) if version >= 6 else b""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    rules: int = libc.syscall(CREATE_RULESET, buffer, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for folder in folders:
            _allow(libc, rules, folder, rights)
        _allow(libc, rules, os.devnull, rights & (0b10 | TRUNCATE))
        return bool(libc.syscall(RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, opened), 12)
    libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
    os.close(opened)
