"""Work is tried in a process of its own, which it may end; what was called last is known."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from accel_bench.plugins.trial import Ending, note_call, run_in_trial

NO_CALL = ("", "", "")


def leave() -> None:
    """End the process while a plugin's code is called, after that of others."""
    note_call("first", "bench-first", "claims")
    note_call("mine", "bench-mine", "fingerprint")
    note_call("adamw", "accel-bench", "claims")
    print("what a plugin prints")
    os._exit(3)


def crash() -> None:
    """End by a signal before any plugin's code is called."""
    os.kill(os.getpid(), signal.SIGKILL)


def signal_itself() -> None:
    """End by a signal without a name."""
    os.kill(os.getpid(), signal.SIGRTMIN + 6)


def detach() -> None:
    """End while a plugin's code is called, and leave the rest to another process."""
    note_call("mine", "bench-mine", "claims")
    if os.fork():
        os._exit(0)


def fail() -> None:
    """Raise what nothing but the program itself reports."""
    raise SystemExit(1)


def sleep(path: Path) -> None:
    """Write which process this is, and never return."""
    path.write_text(str(os.getpid()))
    note_call("mine", "bench-mine", "claims")
    time.sleep(3600)


def test_the_ending_and_the_last_call_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    ends: dict[Callable[[], None], Ending | None] = {
        leave: Ending("exit code 3", ("mine", "bench-mine", "fingerprint")),
        crash: Ending("SIGKILL", NO_CALL),
        signal_itself: Ending(f"signal {signal.SIGRTMIN + 6}", NO_CALL),
        detach: Ending("exit code 0", ("mine", "bench-mine", "claims")),
        fail: None,
        print: None,
    }
    for work, ending in ends.items():
        assert run_in_trial(work, 30.0) == ending


def test_what_is_slow_has_not_ended_the_process_and_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    late = run_in_trial(partial(sleep, tmp_path / "process"), 0.5)
    assert late == Ending("", ("mine", "bench-mine", "claims"))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_a_call_is_noted_in_a_trial_alone() -> None:
    note_call("mine", "bench-mine", "claims")
    assert run_in_trial(partial(os._exit, 0), 30.0) == Ending("exit code 0", NO_CALL)
