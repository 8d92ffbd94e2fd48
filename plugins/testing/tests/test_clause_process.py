"""However a plugin ends the process of the kit, that is a line of the report; the rest is tried."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_bench_testing import clause_process
from fault_plugins.faults import source

from .checking import NULL, violations

PR_SET_NAME = 15
"""Linux: give the calling thread a name."""


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        ("os._exit(0)", "the plugin ended the process (exit 0); raise an error instead"),
        ("os.kill(os.getpid(), 11)", "the plugin ended the process (SIGSEGV)"),
        ("raise KeyboardInterrupt", "it raised KeyboardInterrupt in accelerate_model"),
        ("import sys; sys.exit(0)", "SystemExit"),
        (
            "import time; os.kill(os.getppid(), 9); time.sleep(60)",
            "the plugin ended the process (SIGKILL)",
        ),
    ],
)
def test_an_ending_of_the_process_is_a_violation_that_names_the_hook(
    tmp_path: Path, ends: str, how: str
) -> None:
    found = violations(tmp_path, source(acting=ends), scenario=NULL)[0]
    assert found.startswith("runs: ")
    assert how in found
    assert "in accelerate_model" in found


def test_a_plugin_that_hangs_is_ended_and_its_line_named(tmp_path: Path) -> None:
    text = source(acting="import time; time.sleep(600)")
    (found,) = violations(tmp_path, text, scenario=NULL, seconds=20)
    assert "runs: it had not ended after 20 s" in found
    assert "(in accelerate_model)" in found
    assert ", accelerate_model" in found  # The frame in which it sleeps.


@pytest.mark.real_import
@pytest.mark.parametrize(
    ("does", "seconds", "imported", "run"),
    [
        (
            "import time; time.sleep(600)",
            6,
            "and planning with it had not ended after 6 s; check_plugin(seconds=...) allows more",
            "had not ended after 6 s",
        ),
        (
            "os.kill(os.getppid(), 9)",
            60,
            "that imports it and plans with it (SIGKILL)",
            "(SIGKILL)",
        ),
    ],
)
def test_planning_that_hangs_or_kills_its_parent_is_a_violation(
    tmp_path: Path, does: str, seconds: float, imported: str, run: str
) -> None:
    more = f"@hookimpl\n    def check_scenario(self, experiment):\n        {does}"
    light, runs = violations(tmp_path, source(more=more), scenario=NULL, seconds=seconds)
    assert light.startswith("light import: ") and imported in light
    assert runs.startswith("runs: ") and run in runs


def test_an_exit_in_planning_is_a_violation(tmp_path: Path) -> None:
    more = "@hookimpl\n    def check_scenario(self, experiment):\n        os._exit(0)"
    (found,) = violations(tmp_path, source(more=more), scenario=NULL)
    assert found.startswith("runs: the plugin ended the process (exit 0)")


def test_clauses_behind_a_crash_are_tried_in_a_new_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    early = (
        "@hookimpl\n    def prepare_process(self, run):\n"
        "        run.scenario.model.dtype == 'bfloat16' and os._exit(3)"
    )
    found = violations(tmp_path, source(more=early), scenario=NULL, dtypes=("bfloat16", "float16"))
    ending = "the plugin ended the process (exit 3); raise an error instead (in prepare_process)"
    assert found == [f"dtypes: {ending}"]
    assert "  proven    dtypes: float16\n" in capsys.readouterr().out


@pytest.mark.parametrize("call", ["print", "run.logger.info"])
def test_a_flood_of_output_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(clause_process, "LOG_BYTES", 2_000_000)
    acting = f"[{call}('x' * 1000) for n in range(10**9)]"
    found = violations(tmp_path, source(acting=acting), scenario=NULL)[0]
    assert found.startswith("runs: it wrote more than 2 MB of output")


def test_only_the_end_of_an_output_is_read(tmp_path: Path) -> None:
    log = tmp_path / clause_process.LOG
    stack = 'Current thread (most recent call first):\n  File "p.py", line 7 in step\n'
    with log.open("wb") as file:
        file.truncate(2**28)
        file.seek(0, 2)
        file.write(stack.encode())
    tracemalloc.start()
    try:
        assert clause_process.last_frame(log) == "p.py, line 7, step"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_the_process_ends_when_the_one_that_checks_is_killed(tmp_path: Path) -> None:
    program = """
import os, time
from pathlib import Path
from accel_bench_testing.clause_process import try_apart

def steps(folder):
    Path("child.pid.part").write_text(str(os.getpid()))
    os.rename("child.pid.part", "child.pid")
    time.sleep(600)
    yield

list(try_apart(steps, "runs", 600))
"""
    file = tmp_path / "child.pid"
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path) as parent:
        try:
            wait_until(file.exists)
        finally:
            parent.kill()
    child = Path("/proc") / file.read_text()
    wait_until(lambda: not child.exists())


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_process_is_not_forked_from_one_with_autograd_s_threads() -> None:
    ended, named = threading.Event(), threading.Event()

    def wait() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_autograd_0")
        named.set()
        ended.wait()

    assert clause_process._can_fork()
    thread = threading.Thread(target=wait)
    thread.start()
    named.wait()
    try:
        assert not clause_process._can_fork()
    finally:
        ended.set()
        thread.join()
