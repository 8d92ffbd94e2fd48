"""Progress as lines of JSON, each held against the table of docs/automation.md."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from analysis_factory import make_result
from cli.program import NULLS, call

DOCS = Path(__file__).parents[2] / "docs"
SLOW = "engine: {use: null, step_seconds: 0.1"
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "null": (type(None),),
}


def table() -> dict[str, tuple[tuple[type, ...], str]]:
    """Return the types and the events of each key that the page lists."""
    rows = re.findall(r"^\| `(\w+)` \| ([a-z ]+) \| ([a-z ]+) \|", page(), re.MULTILINE)
    return {
        key: (sum((TYPES[kind] for kind in types.split(" or ")), ()), events)
        for key, types, events in rows
    }


def page() -> str:
    return (DOCS / "automation.md").read_text()


def check(event: dict[str, Any]) -> None:
    known = table()
    for key, value in event.items():
        assert isinstance(value, known[key][0]), (key, value)
    expected = {
        key for key, (_, events) in known.items() if events == "all" or event["event"] in events
    }
    assert event.keys() == expected


def test_every_line_of_progress_has_the_keys_and_types_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "nulls.yaml").write_text(NULLS)
    command = re.findall(r"^accel-bench (run .*) > summary.json", page(), re.MULTILINE)[0]
    done = call(*command.split(), folder=tmp_path)
    assert done.code == 0
    assert json.loads(done.out)["scenario"] == "nulls"
    events = [json.loads(line) for line in done.err.splitlines()]
    for event in events:
        check(event)
    runs = [event["event"] for event in events if event["event"] != "running"]
    assert runs == ["planned", "started", "ended", "started", "ended"]
    assert [event["ended"] for event in events if event["event"] == "ended"] == [1, 2]


def test_the_lines_that_the_page_shows_have_its_keys() -> None:
    lines = re.findall(r"^(\{.*\})$", page(), re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        check(json.loads(line))


def test_a_failed_run_says_so_in_its_line(tmp_path: Path) -> None:
    (tmp_path / "nulls.yaml").write_text(NULLS.replace("other: []", "other: [{use: missing}]"))
    done = call("run", "nulls.yaml", "--progress", "json", folder=tmp_path)
    (error,) = map(json.loads, done.err.splitlines())
    check(error)
    assert (done.code, error["event"]) == (2, "error")
    assert "missing" in error["reason"] and not error["reason"].startswith("error")
    (tmp_path / "nulls.yaml").write_text(NULLS)
    options = ("--timeout", "0.001", "--progress", "json", "--format", "json")
    done = call("run", "nulls.yaml", *options, folder=tmp_path)
    assert done.code == 1
    ended = [json.loads(line) for line in done.err.splitlines()]
    ended = [event for event in ended if event["event"] == "ended"]
    assert ended and {event["status"] for event in ended} <= {"timeout", "killed"}
    assert all(event["reasons"] and event["tokens_per_second"] is None for event in ended)
    for event in ended:
        check(event)


def test_what_a_command_says_beside_its_results_is_a_line_too(tmp_path: Path) -> None:
    (tmp_path / "nulls.yaml").write_text(NULLS.replace("engine: {use: null", SLOW))
    options = ("--fail-if-slower", "1%", "--progress", "json", "--format", "json")
    done = call("run", "nulls.yaml", *options, folder=tmp_path)
    assert done.code == 5, done.err
    events = [json.loads(line) for line in done.err.splitlines()]
    for event in events:
        check(event)
    assert "round" in events[-1]["reason"] and events[-1]["event"] == "note"


def test_an_option_decides_for_its_own_command_alone(tmp_path: Path) -> None:
    call("run", "none.yaml", "--progress", "json", folder=tmp_path)
    assert call("run", "none.yaml", folder=tmp_path).err.startswith("error: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_each_line_is_json_to_the_end_when_a_signal_ends_the_program(
    number: int, tmp_path: Path
) -> None:
    (tmp_path / "nulls.yaml").write_text(NULLS.replace("engine: {use: null", SLOW + "00"))
    command = [sys.executable, "-m", "accel_bench", "run", "nulls.yaml", "--progress", "json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stderr
        events = []
        for line in program.stderr:
            events.append(json.loads(line))
            check(events[-1])
            if events[-1]["event"] == "running" and program.poll() is None:
                program.send_signal(number)
    assert program.returncode == 128 + number
    assert events[-1]["event"] == "ended" and events[-1]["status"] == "interrupted"


def test_the_end_of_a_run_is_printed_though_ctrl_c_came_while_a_line_was(capsys: Any) -> None:
    from accel_bench.cli import progress
    from accel_bench.testing import make_experiment

    reporter = progress.make_reporter(quiet=False, form="json")
    planned: Any = SimpleNamespace(experiment=make_experiment())
    plan: Any = SimpleNamespace(file=planned.experiment.scenario, notices=(), planned=())
    with patch.object(progress, "print_event", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            reporter.on_plan(plan, 1, None)
    reporter.on_result(planned, "round 1 of 1", make_result())
    assert json.loads(capsys.readouterr().err)["event"] == "ended"


def test_notices_skipped_and_dropped_stacks_and_warnings_are_lines_too(capsys: Any) -> None:
    from accel_bench.cli.progress import make_reporter
    from accel_bench.testing import make_experiment

    reporter = make_reporter(quiet=False, form="json")
    planned: Any = SimpleNamespace(experiment=make_experiment(), skipped=("no GPU", "no flash"))
    file = planned.experiment.scenario
    plan: Any = SimpleNamespace(file=file, notices=("fewer cores",), planned=(planned,))
    reporter.on_plan(plan, 0, None)
    reporter.on_drop(planned, "it lost the race")
    reporter.on_warning("a tracker failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["note", "skipped", "planned", "dropped", "warning"]
    assert [line.get("reason") for line in lines[:2]] == ["fewer cores", "no GPU; no flash"]
    for line in lines:
        check(line)


def test_exit_codes_are_those_of_the_help_and_of_the_page() -> None:
    text = (DOCS.parent / "sample_configurations" / "help" / "exit-codes.txt").read_text()
    helped = set(re.findall(r"^  (\d)    ", text, re.MULTILINE))
    assert helped == set(re.findall(r"^\| (\d) \| ", page(), re.MULTILINE))
