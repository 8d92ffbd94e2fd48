"""Ends what a killed session has left running: a program of its own, started by the launcher.

    python -I -S reaper.py PARENT_PID        (standard input: a pipe that only the parent holds)

The pipe closes when the parent ends, in whatever way; then every process is killed that carries the
parent's number in its environment. Workers end by themselves; what they have started does not.
"""

import os
import signal
import sys
import time

CALM_SCANS = 4
"""Scans in a row that must find nothing."""

SCAN_SECONDS = 0.1
"""Time between two scans."""


def main(parent: bytes) -> None:
    """Wait for the end of the parent, then scan /proc until nothing of it is left.

    A process that is just being started shows no environment yet: so one scan is not enough.
    """
    sys.stdin.buffer.read()
    mark = b"ACCEL_BENCH_PARENT=" + parent
    calm = 0
    while calm < CALM_SCANS:
        killed = [_kill(pid, mark) for pid in os.listdir("/proc") if pid.isdigit()]
        calm = 0 if any(killed) else calm + 1
        time.sleep(SCAN_SECONDS)


def _kill(pid: str, mark: bytes) -> bool:
    """Kill a process that carries the mark; return whether it did."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            if mark not in environment.read().split(b"\0"):
                return False
        with open(f"/proc/{pid}/stat", "rb") as status:
            if status.read().rpartition(b")")[2].split()[0] == b"Z":
                return False
        os.kill(int(pid), signal.SIGKILL)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1].encode())
