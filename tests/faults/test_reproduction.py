"""Every run's folder holds a command that runs it again; nothing in it goes through a shell."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from faults.program import Finished, Program, null_scenario, write_scenario

from accel_bench.result import Result

HOSTILE = {
    "shell": "x; touch pwned",
    "substitution": "$(touch pwned) `touch pwned` ${HOME}",
    "quotes": 'it\'s "quoted" \\ back',
    "newline": "two\nlines\ttab",
    "number": "2e-4",
    "octal": "089",
    "word": "null",
    "yes": "no",
    "unicode": "ümlaut \U0001f600 \u2028",
    "yaml": "&a *b !c {d: e} # f",
    "dash": "--results=/nowhere",
    "empty": "",
    "space": " padded ",
}
"""Values of an option."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Finished:
    """One run of them all, in a folder whose name is no better."""
    folder = tmp_path_factory.mktemp("hostile") / "a b;$(touch pwned)'"
    folder.mkdir()
    program = Program(folder, site)
    use = {"use": "faulty", "value": {"texts": HOSTILE, "numbers": [1e-05, 1e22, -0.0, 10**20]}}
    model = {"use": "null", "id": "$(touch pwned); org/model's", "overrides": {"a": "'\"`$("}}
    return program.run(null_scenario({"hostile": [use]}, model=model), "--quiet")


def row_of(finished: Finished) -> Result:
    """Its first row."""
    assert finished.code == 0, finished.err
    return finished.results[0]


def test_the_command_file_parses_back_to_the_identical_arguments(finished: Finished) -> None:
    row = row_of(finished)
    text = (finished.program.results_folder / row.folder / "command.txt").read_text("utf8")
    where, command = text.rstrip("\n").rsplit("\n", maxsplit=1)
    assert shlex.split(command) == list(row.command)
    assert shlex.split(where) == ["cd", str(finished.program.folder)]


def test_running_the_command_gives_the_same_experiment(finished: Finished) -> None:
    row, program = row_of(finished), finished.program
    arguments = list(row.command)
    assert arguments[1:3] == ["-m", "accel_bench"]
    again = program.call(*arguments[3:], "--quiet")
    assert again.code == 0, again.err
    rows = program.results()
    assert len(rows) == 2
    assert rows[1].experiment.id == row.experiment.id
    assert rows[1].experiment.stack == row.experiment.stack


def test_no_text_was_run_by_a_shell(finished: Finished) -> None:
    assert list(finished.program.folder.rglob("*pwned*")) == []
    assert not Path("pwned").exists()


NAMES = ["../up", "/absolute", "x" * 300, "two\nlines", "a/b", "", "..", "white space", "a\0b"]


@pytest.mark.box
def test_names_that_could_leave_the_folder_are_refused(program: Program) -> None:
    files = []
    for number, name in enumerate(NAMES):
        scenarios = [null_scenario({"baseline": []}, name=name), null_scenario({name: []})]
        for what, scenario in zip(("scenario", "stack"), scenarios, strict=True):
            path = program.folder / f"{what}{number}.yaml"
            files.append(str(write_scenario(path, scenario)))
    before = sorted(program.folder.parent.rglob("*"))
    finished = program.call("scenarios", "check", *files)
    assert finished.code == 2
    assert finished.out == ""
    assert "Traceback" not in finished.err
    assert all(file in finished.err for file in files)
    assert sorted(program.folder.parent.rglob("*")) == before


def test_a_variable_that_loads_code_is_refused(program: Program) -> None:
    scenario = null_scenario({"baseline": []}, environment={"LD_PRELOAD": "evil.so"})
    finished = program.run(scenario)
    assert finished.code == 2
    assert "a scenario may not set LD_PRELOAD; if you trust it, use --allow-env" in finished.err
    assert not program.results_folder.exists()


def show(*names: str) -> dict[str, Any]:
    """A use that reports variables of the worker."""
    return {"use": "faulty", "fault": "show", "hook": "report_evidence", "value": list(names)}


def test_variables_that_change_speed_are_set_in_the_worker(program: Program) -> None:
    use = show("OMP_NUM_THREADS", "BASH_ENV")
    scenario = null_scenario({"baseline": [use]}, environment={"OMP_NUM_THREADS": "3"})
    shown = program.run(scenario, "--quiet").results[0].ranks[0].evidence["faulty"]
    assert shown == {"OMP_NUM_THREADS": "3", "BASH_ENV": None}


def test_any_variable_can_be_set_when_the_scenario_is_trusted(program: Program) -> None:
    scenario = null_scenario({"baseline": [show("BASH_ENV")]}, environment={"BASH_ENV": "/x"})
    finished = program.run(scenario, "--quiet", "--allow-env")
    assert finished.results[0].ranks[0].evidence["faulty"] == {"BASH_ENV": "/x"}
    assert "--allow-env" in finished.results[0].command


def test_the_shell_itself_understands_the_command(finished: Finished) -> None:
    row = row_of(finished)
    text = (finished.program.results_folder / row.folder / "command.txt").read_text("utf8")
    script = 'exec printf "%s\\0" ' + text.rstrip("\n").rsplit("\n", maxsplit=1)[1]
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == list(row.command)
