"""Work is tried in a copy of the process, which it may end; what was called last is known."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_bench.plugins.loading import Ending, ending_in_copy, note_call

NO_CALL = ("", "", "")


def leave() -> None:
    """End the process while a plugin's code is called, after that of others."""
    note_call("first", "bench-first", "claims")
    note_call("mine", "bench-mine", "fingerprint")
    note_call("adamw", "accel-bench", "claims")
    os._exit(3)


def crash() -> None:
    """End by a signal before any plugin's code is called."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    """Raise what nothing but the process itself reports."""
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("work", "ending"),
    [
        (leave, Ending("exit code 3", ("mine", "bench-mine", "fingerprint"))),
        (crash, Ending("SIGKILL", NO_CALL)),
        (fail, None),
        (lambda: None, None),
    ],
)
def test_the_ending_and_the_last_call_are_returned(
    work: Callable[[], None], ending: Ending | None
) -> None:
    assert ending_in_copy(work, 30.0) == ending


def test_what_is_slow_has_not_ended_the_process_and_is_not_left_running(tmp_path: Path) -> None:
    def sleep() -> None:
        (tmp_path / "process").write_text(str(os.getpid()))
        time.sleep(3600)

    assert ending_in_copy(sleep, 0.5) == Ending("", NO_CALL)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_a_call_is_noted_in_a_copy_alone_however_long_its_name() -> None:
    note_call("mine", "bench-mine", "claims")
    assert ending_in_copy(lambda: os._exit(0), 30.0) == Ending("exit code 0", NO_CALL)

    def end() -> None:
        note_call("x" * 10_000, "bench-mine", "claims")
        os._exit(0)

    ending = ending_in_copy(end, 30.0)
    assert ending is not None
    assert set(ending.call[0]) == {"x"}
