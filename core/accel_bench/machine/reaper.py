"""Program (reaper) that runs one rank, and ends all processes that the rank leaves behind.

    python -I -S reaper.py PARENT_PID DESCRIPTOR COMMAND...

The rank's process id is written to the descriptor.

On Linux a process can adopt the orphans among its descendants. No process of a rank can therefore
escape by leaving its process session or changing its environment. All of them end with the rank,
and the rank ends with the parent, even if the parent is killed.
"""

import ctypes
import os
import resource
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Linux options of `prctl`: a signal when the parent ends, and adoption of orphans."""

PATIENCE_SECONDS = 5.0
"""Seconds to wait for the end of killed processes."""


def main(parent: int, report: int, command: list[str]) -> int:
    """Run the command until it ends; return its exit code (-N for signal N).

    `parent` is the parent's process id. The command's process id is written to descriptor `report`.
    """
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    os.set_inheritable(report, False)
    environment = {**os.environ, "ACCEL_BENCH_PARENT": str(os.getpid())}
    worker = os.posix_spawn(command[0], command, environment, setsid=True)
    os.write(report, str(worker).encode())
    os.close(report)
    status = None
    while status is None:
        if signal.SIGTERM in os.read(reading, 512):
            kill(worker)
        status = reap(worker)
    end_children()
    return os.waitstatus_to_exitcode(status)


def reap(worker: int) -> int | None:
    """Collect all ended children; return process `worker`'s wait status, None while it runs."""
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == worker else status
    except ChildProcessError:
        pass
    return status


def end_children() -> None:
    """Kill all children, and orphans that become children, for at most 5 seconds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in os.listdir("/proc"):
            if pid.isdigit() and parent_of(pid) == os.getpid():
                kill(int(pid))
        time.sleep(0.005)


def kill(pid: int) -> None:
    """Kill a process, unless it runs as another user."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def parent_of(pid: str) -> int:
    """Return the process id of a process's parent, or 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            return int(status.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


if __name__ == "__main__":
    code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    if code < 0:  # end as the rank did, without a second core dump
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
