"""Progress: lines where nobody watches, a moving line on a terminal, nothing when quiet."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from analysis_factory import FAST, LORA
from cli.program import write_nulls
from rich.console import Console

from accel_bench.analysis.wording import duration
from accel_bench.cli.progress import LiveReporter
from accel_bench.planning.plan import Plan, Planned
from accel_bench.runner.heartbeats import Progress


def on_a_terminal(folder: Path, *arguments: str) -> tuple[str, str, int]:
    """Run the program with a terminal as stderr; return stdout, what the terminal got, the code."""
    scenario = write_nulls(folder, engine="{use: null, step_seconds: 0.2}", stacks="{alone: []}")
    command = [sys.executable, "-m", "accel_bench", "run", str(scenario), *arguments]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "GIT_DIR": os.devnull}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:
        pass  # Linux reports the end of a terminal as an error.
    finally:
        os.close(ours)
    out, _ = process.communicate(timeout=60)
    return out.decode(), shown.decode(), process.returncode


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, int]:
    """One run of five slow steps on a terminal."""
    folder = tmp_path_factory.mktemp("watched")
    return on_a_terminal(folder, "--set", "measure.steps=5", "--format", "json")


def test_a_terminal_shows_stack_round_phase_and_step_while_it_runs(
    watched: tuple[str, str, int],
) -> None:
    out, shown, code = watched
    assert code == 0
    assert "round 1 of 1  alone  starting" in shown
    assert "round 1 of 1  alone  " in shown
    assert any(f"step {step}" in shown for step in range(2, 6))
    assert "tokens/s" in shown
    assert out.startswith("{")


def test_what_has_ended_stays_above_the_moving_line(watched: tuple[str, str, int]) -> None:
    _, shown, _ = watched
    assert "nulls: 1 run" in shown
    assert "round 1 of 1  alone  ok  " in shown


def test_the_moving_line_is_taken_away_and_the_cursor_comes_back(
    watched: tuple[str, str, int],
) -> None:
    _, shown, _ = watched
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert shown.rstrip().endswith("\x1b[2K") or "\x1b[2K" in shown


def test_each_of_the_experiments_that_run_at_once_has_its_own_speed() -> None:
    reporter = LiveReporter(Console(file=io.StringIO()))
    one, other = (cast(Planned, SimpleNamespace(experiment=each)) for each in (LORA, FAST))
    for planned in (one, other):
        reporter.on_start(planned, "round 1 of 1")
    reporter.on_progress(one, "round 1 of 1", Progress(100, "window"))
    reporter.on_progress(other, "round 1 of 1", Progress(1, "window"))
    shown = reporter._line().plain
    reporter.close()
    assert shown.endswith("fast  window  step 1")  # no speed yet: this is its first step


def test_quiet_leaves_a_terminal_empty(tmp_path: Path) -> None:
    out, shown, code = on_a_terminal(tmp_path, "--quiet", "--set", "engine.step_seconds=0.0")
    assert (shown, code) == ("", 0)
    assert "alone" in out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200.0, "3 min 20 s"),
        (3599.0, "59 min 59 s"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_durations_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "end"),
    [(None, "starting"), (100.5, "(1 min 40 s left)"), (0.0, "(longer than expected)")],
)
def test_before_the_first_run_has_ended_earlier_runs_say_what_is_left(
    seconds: float | None, end: str
) -> None:
    reporter = LiveReporter(Console(file=io.StringIO()))
    plan = SimpleNamespace(notices=(), planned=(), file=SimpleNamespace(name="nulls"))
    reporter.on_plan(cast(Plan, plan), 1, seconds)
    reporter.on_start(cast(Planned, SimpleNamespace(experiment=LORA)), "round 1 of 1")
    shown = reporter._line().plain
    reporter.close()
    assert shown.endswith(end)


def test_what_observers_see_stands_beside_the_step() -> None:
    reporter = LiveReporter(Console(file=io.StringIO()))
    planned = cast(Planned, SimpleNamespace(experiment=LORA))
    reporter.on_start(planned, "round 1 of 1")
    reporter.on_progress(
        planned, "round 1 of 1", Progress(2, "window", live="utilization.gpu 97 %")
    )
    shown = reporter._line().plain
    reporter.close()
    assert shown.endswith("window  step 2  utilization.gpu 97 %")
