"""Seccomp filter that forbids system calls to a candidate's process; Linux on x86-64 and ARM64.

Sockets reach other machines and services. A process that changes the scheduling of accel-bench
slows down all later runs, the reference's too. Landlock forbids neither sockets nor scheduling.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, REFUSE, ABSENT = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
"""Return values of a filter: the call is allowed, or fails with EPERM or ENOSYS."""

LOAD, EQUALS, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Codes of BPF instructions: load a word of the call, compare it with a constant, return."""

NUMBER, ARCHITECTURE = 0, 4
FOREIGN_ABI = 0x40000000
"""Smallest number of a system call of another interface (x32)."""

PRIO_USER, IOPRIO_WHO_USER = 2, 3
F_SETOWN, F_SETOWN_EX = 8, 15

Instruction = tuple[int, int, int, int]
"""BPF instruction: code, lines to skip if a comparison holds or does not hold, and constant."""


class Machine(NamedTuple):
    """Numbers of system calls on one architecture."""

    audit: int
    refused: Sequence[int]
    """Calls that are always refused: socket, io_uring_setup, ptrace, pidfd_send_signal."""

    of_process: Sequence[int]
    """Calls whose first argument names a process: kill, tkill, tgkill, rt_sigqueueinfo,
    rt_tgsigqueueinfo, pidfd_open, sched_setparam, sched_setscheduler, sched_setaffinity,
    sched_setattr, prlimit64."""

    priorities: Sequence[tuple[int, int]]
    """Calls whose second argument names a process, each with the value of the first argument that
    names a user instead: setpriority, ioprio_set."""

    fcntl: int
    """Call `fcntl`, which can choose the process that gets a file's signals."""


MACHINES = {
    "x86_64": Machine(
        0xC000003E,
        (41, 425, 101, 424),
        (62, 200, 234, 129, 297, 434, 142, 144, 203, 314, 302),
        ((141, PRIO_USER), (251, IOPRIO_WHO_USER)),
        72,
    ),
    "aarch64": Machine(
        0xC00000B7,
        (198, 425, 117, 424),
        (129, 130, 131, 138, 240, 434, 118, 119, 122, 274, 261),
        ((140, PRIO_USER), (30, IOPRIO_WHO_USER)),
        25,
    ),
}


def refuse_calls() -> bool:
    """Install the filter of system calls for this thread; return whether this succeeded.

    All threads and processes that this thread starts later inherit the filter.
    `prctl(PR_SET_NO_NEW_PRIVS)` must be called before.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None:
        return False
    program = filter_of(machine, ancestors())
    lines = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    status: int = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0)
    return status == 0


def filter_of(machine: Machine, protected: Iterable[int]) -> bytes:
    """Return the BPF program of a filter that protects the processes with the ids `protected`, at 8
    bytes per instruction."""
    processes = sorted({target & 0xFFFFFFFF for pid in protected for target in (pid, -pid)})
    lines: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE), (EQUALS, 1, 0, machine.audit), (RETURN, 0, 0, ABSENT),
    ]  # fmt: skip
    lines += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, FOREIGN_ABI), (RETURN, 0, 0, ABSENT)]
    for call in machine.refused:
        lines += [(EQUALS, 0, 1, call), (RETURN, 0, 0, REFUSE)]
    for call in machine.of_process:
        lines += _unless(call, [(0, processes)])
    for call, of_user in machine.priorities:
        lines += _unless(call, [(0, [of_user]), (1, processes)])
    lines += _unless(machine.fcntl, [(1, [F_SETOWN, F_SETOWN_EX])])
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _unless(call: int, refused: Sequence[tuple[int, Sequence[int]]]) -> list[Instruction]:
    """Return BPF instructions that refuse the system call of number `call` for some values of its
    arguments.

    `refused` has pairs of an argument's index and the refused values.
    """
    lines: list[Instruction] = []
    for argument, values in refused:
        lines.append((LOAD, 0, 0, 16 + 8 * argument))
        for value in values:
            lines += [(EQUALS, 0, 1, value), (RETURN, 0, 0, REFUSE)]
    return [(EQUALS, 0, len(lines), call), *lines, (LOAD, 0, 0, NUMBER)]


def ancestors() -> set[int]:
    """Return the ids of all visible ancestors of this process, and of their process groups."""
    pids, pid = {1}, os.getppid()
    with suppress(OSError):  # Those of others may be hidden, and one may end meanwhile.
        while pid > 0:
            pids |= {pid, os.getpgid(pid)}
            fields = Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2].split()
            pid = int(fields[1])
    return pids - {0}
