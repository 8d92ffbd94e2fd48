"""Signals, a killed parent, streams that fail: what was measured is kept."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import install
from faults.program import Program, null_scenario, wait_for, write_scenario

from accel_bench.launcher import INTERRUPTIONS
from accel_bench.result import Status

pytestmark = pytest.mark.long

ENDLESS = {"endless": [{"use": "faulty", "fault": "sleep"}]}
SLOW_IMPORT = """
import os, sys, time
from accel_bench import Options, Plugin

if "RANK" in os.environ:
    print("importing", flush=True)
    time.sleep(3600)

class Slow(Plugin[Options]):
    pass
"""
"""A plugin whose import takes long in a worker."""

DEAF = {"deaf": [{"use": "faulty", "fault": "ignore"}]}


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Tests that run in the background, or under nohup, inherit ignored signals, as programs do."""
    ignored = [n for n in INTERRUPTIONS if signal.getsignal(n) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def start_and_hang(
    program: Program, stacks: dict[str, Any], form: str = "json", **streams: Any
) -> subprocess.Popen[str]:
    """Start a program and wait until the baseline's run is stored and the other stack hangs in its
    step."""
    # In the order of the seed, the stack that is written last runs first.
    scenario = null_scenario({**stacks, "baseline": []})
    path = write_scenario(program.folder / "scenario.yaml", scenario)
    process = program.start("run", str(path), "--quiet", "--format", form, **streams)
    assert wait_for(lambda: hangs(program, process))
    assert statuses(program) == {"baseline": "ok"}
    return process


def hangs(program: Program, process: subprocess.Popen[str]) -> bool:
    """Whether a worker has reached the step in which it sleeps."""
    assert process.poll() is None, process.communicate()
    pages = program.results_folder.glob("runs/*/*/*.heartbeat")
    marks = [page for page in pages if "endless" in str(page) or "deaf" in str(page)]
    return any(page.read_bytes()[:1] == b"\x03" for page in marks)


def statuses(program: Program) -> dict[str, str]:
    """Status of each stack's only row."""
    rows = program.results()
    found = {row.experiment.stack.name: row.status.value for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(
    ("number", "code"),
    [
        # Ctrl-C is pressed below.
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.release),
        pytest.param(signal.SIGQUIT, 131, marks=pytest.mark.release),
        (signal.SIGTERM, 143),
    ],
)
def test_a_signal_ends_the_run_in_progress_and_prints_what_there_is(
    program: Program, number: signal.Signals, code: int
) -> None:
    process = start_and_hang(program, ENDLESS)
    before = statuses(program)
    process.send_signal(number)
    finished = program.finish(process)
    assert statuses(program) == {**before, "endless": "interrupted"}
    shown = {row["stack"]: row["status"] for row in finished.document["experiments"]}
    assert shown["endless"] == "interrupted"
    assert finished.result("endless").reasons == ("stopped by the user",)
    assert program.left_behind() == []
    assert finished.code == code


def test_five_quick_ctrl_c_keep_the_row_print_the_table_and_end_with_130(
    program: Program,
) -> None:
    process = start_and_hang(program, ENDLESS, "table")
    before = statuses(program)
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    finished = program.finish(process)
    assert statuses(program) == {**before, "endless": "interrupted"}
    assert "stopped by the user" in " ".join(finished.out.split())
    assert "Traceback" not in finished.out + finished.err
    assert program.left_behind() == []
    assert finished.code == 130


def test_a_terminal_that_closes_leaves_the_row_and_the_exit_code(program: Program) -> None:
    own, theirs = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = start_and_hang(program, ENDLESS, "table", preexec_fn=take_terminal, **streams)
    before = statuses(program)
    os.close(theirs)
    os.close(own)
    finished = program.finish(process)
    assert statuses(program) == {**before, "endless": "interrupted"}
    assert program.left_behind() == []
    assert finished.code == 129


def test_ctrl_c_while_a_worker_imports_a_plugin_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    program = Program(tmp_path, tmp_path / "site")
    install(program.site, "bench-slow", {"slow": "Slow"}, SLOW_IMPORT)
    path = write_scenario(tmp_path / "slow.yaml", null_scenario({"baseline": ["slow"]}))
    process = program.start("run", str(path), "--quiet")
    logs = program.results_folder.glob
    assert wait_for(lambda: any("importing" in log.read_text() for log in logs("runs/*/*/*.log")))
    process.send_signal(signal.SIGINT)
    finished = program.finish(process)
    assert [row.status for row in finished.results] == [Status.INTERRUPTED]
    assert finished.results[0].ranks[0].phase == "activation"
    assert "Traceback" not in finished.out + finished.err + finished.log("baseline")
    assert finished.code == 130


def test_a_second_ctrl_c_does_not_wait_for_a_deaf_worker(program: Program) -> None:
    # Longer than anybody waits for the program below: who waited for the worker would fail here.
    impatient = replace(program, environment={"ACCEL_BENCH_GRACE_SECONDS": "3600"})
    process = start_and_hang(impatient, DEAF)
    process.send_signal(signal.SIGINT)
    # The worker is asked to end and given some seconds: that is when people press it again.
    assert wait_for(lambda: "stacks" in process_log(program) or process.poll() is None)
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    assert program.finish(process).code == 130
    assert statuses(program)["deaf"] == "interrupted"
    assert program.left_behind() == []


def process_log(program: Program) -> str:
    """Logs of the worker that hangs."""
    logs = program.results_folder.glob("runs/*/*deaf*/rank0.log")
    return "".join(path.read_text(encoding="utf8") for path in logs)


def test_nothing_outlives_a_killed_parent_and_a_resumed_run_does_the_rest(
    program: Program,
) -> None:
    """The reaper has adopted what the worker has started, and ends it and the worker."""
    process = start_and_hang(program, {"endless": [{"use": "faulty", "fault": "family"}]})
    # Program, reaper, worker, and a child of each kind.
    assert wait_for(lambda: len(program.processes()) == 6)
    before = program.results()
    process.kill()
    process.communicate()
    assert program.left_behind() == []
    assert program.results() == before
    listed = program.call("results", "list", "--format", "json").document
    assert [(row["stack"], row["status"]) for row in listed[len(before) :]] == [
        ("endless", "unfinished")
    ]

    scenario = program.folder / "scenario.yaml"
    # A process as the first one was: the id holds the version, which this one knows by its commit.
    finished = program.call_apart("run", str(scenario), "--quiet", "--resume", "--timeout", "2")
    added = [row for row in program.results() if row.run_id not in {r.run_id for r in before}]
    # The round that was cut short is run as a whole, since only runs of one session are paired.
    assert {row.experiment.stack.name for row in added} == {"baseline", "endless"}
    assert {row.experiment.id for row in before} < {row.experiment.id for row in added}
    assert finished.code == 1


def test_rounds_that_were_complete_before_a_kill_are_not_run_again(
    program: Program, tmp_path: Path
) -> None:
    program.environment = {"FAULTY_COUNTER": str(tmp_path / "counter"), "FAULTY_SHARE": "0"}
    stacks = {"baseline": [], "other": [{"use": "faulty", "fault": "sometimes"}]}
    measure = {"warmup": 2, "steps": 4, "rounds": 2}
    path = write_scenario(tmp_path / "long.yaml", null_scenario(stacks, measure=measure))
    process = program.start("run", str(path), "--quiet")
    assert wait_for(lambda: program.count() >= 3)
    process.kill()
    process.communicate()
    assert program.left_behind() == []
    before = program.results()
    complete = len(before) // 2

    assert program.call_apart("run", str(path), "--quiet", "--resume").code == 0
    added = program.results()[len(before) :]
    assert [row.status for row in added] == [Status.OK] * 2 * (2 - complete)
    assert {row.round for row in added} == set(range(complete, 2))


def test_a_reader_that_leaves_costs_no_result(program: Program) -> None:
    path = write_scenario(program.folder / "s.yaml", null_scenario({"baseline": []}))
    reading, writing = os.pipe()
    process = program.start("run", str(path), "--quiet", stdout=writing)
    os.close(reading)
    os.close(writing)
    finished = program.finish(process)
    assert "Traceback" not in finished.err
    assert [row.status for row in finished.results] == [Status.OK]


@pytest.mark.parametrize("stream", ["full", pytest.param("closed", marks=pytest.mark.release)])
def test_an_stderr_that_takes_nothing_costs_no_run(program: Program, stream: str) -> None:
    path = write_scenario(program.folder / "s.yaml", null_scenario({"baseline": []}))
    shut = (lambda: os.close(2)) if stream == "closed" else None
    with open("/dev/full", "w", encoding="utf8") as full:
        process = program.start("run", str(path), "--format", "json", stderr=full, preexec_fn=shut)
    finished = program.finish(process)
    assert [row.status for row in finished.results] == [Status.OK]
    assert [row["status"] for row in finished.document["experiments"]] == ["ok"]
    assert finished.code == 0


def test_a_full_stdout_costs_no_result_and_is_an_error(program: Program) -> None:
    path = write_scenario(program.folder / "s.yaml", null_scenario({"baseline": []}))
    with open("/dev/full", "w", encoding="utf8") as full:
        finished = program.finish(program.start("run", str(path), "--quiet", stdout=full))
    assert [row.status for row in finished.results] == [Status.OK]
    assert finished.err == "error: [Errno 28] No space left on device\n"
    assert finished.code == 1
