"""What code has changed of the scheduling of this process, and started, does not outlive it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from accel_bench.machine.scheduling import (
    ended_children,
    read_scheduling,
    restored_scheduling,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="affinity and orphans of Linux")

ORPHAN = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); "
ORPHAN += "os.close(1); time.sleep(3600)"


def start() -> subprocess.Popen[bytes]:
    """Start a process that sleeps until it is ended."""
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"])


def is_alive(pid: int) -> bool:
    """Return whether a process of that id is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_cpus_policy_and_priority_are_put_back() -> None:
    before = read_scheduling()
    with restored_scheduling():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        inside = read_scheduling()
    assert (inside.cpus, inside.policy) == (1, "SCHED_BATCH")
    assert read_scheduling() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority again")
def test_a_priority_is_put_back_where_the_system_allows_it() -> None:
    before = read_scheduling()
    with restored_scheduling():
        os.nice(3)
        assert read_scheduling().nice == min(19, before.nice + 3)
    assert read_scheduling() == before


def test_children_and_orphans_of_a_block_end_with_it_and_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Threads that other tests have left would leave the block's processes alone.
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    ours = start()
    with ended_children():
        child = start()
        command = [sys.executable, "-I", "-S", "-c", ORPHAN]
        orphan = int(subprocess.run(command, env={}, check=True, stdout=subprocess.PIPE).stdout)
        assert is_alive(child.pid) and is_alive(orphan)
    assert not is_alive(child.pid) and not is_alive(orphan)
    assert ours.poll() is None
    ours.kill()
    ours.wait()
    child.wait()


def test_beside_another_thread_it_is_not_known_whose_processes_they_are() -> None:
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait)
    thread.start()
    with ended_children():
        child = start()
    assert child.poll() is None
    child.kill()
    child.wait()
    goes_on.set()
    thread.join()


def test_python_s_own_helper_goes_on() -> None:
    program = (
        "from multiprocessing import resource_tracker\n"
        "from accel_bench.machine.scheduling import ended_children\n"
        "with ended_children():\n    resource_tracker.ensure_running()\n"
        "resource_tracker.ensure_running()\n"
    )
    # Python warns where it has gone.
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], check=True)
