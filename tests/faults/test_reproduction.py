"""Every run's folder holds a command that runs it again; nothing in it goes through a shell."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from accel_bench.result import Result
from faults.program import Finished, Program, null_scenario, write_scenario

HOSTILE = {
    "shell": "x; touch pwned",
    "substitution": "$(touch pwned) `touch pwned` ${HOME}",
    "quotes": 'it\'s "quoted" \\ back',
    "newline": "two\nlines\ttab",
    "number": "2e-4",
    "octal": "089",
    "word": "null",
    "yes": "no",
    "unicode": "ümlaut \U0001f600 \u2028 \x7f",
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


@pytest.mark.parametrize(
    "name", ["../up", "/absolute", "x" * 300, "two\nlines", "a/b", "", "..", "white space", "a\0b"]
)
@pytest.mark.parametrize("what", ["scenario", "stack"])
def test_a_name_that_could_leave_the_folder_is_refused(
    program: Program, name: str, what: str
) -> None:
    changes: dict[str, Any] = {"name": name} if what == "scenario" else {}
    scenario = null_scenario({name if what == "stack" else "baseline": []}, **changes)
    path = write_scenario(program.folder / "s.yaml", scenario)
    before = sorted(program.folder.parent.rglob("*"))
    finished = program.call("scenarios", "validate", str(path))
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert sorted(program.folder.parent.rglob("*")) == before


REFUSED = ("LD_PRELOAD", "PYTHONPATH", "PATH", "HF_TOKEN", "LD_LIBRARY_PATH", "BASH_ENV")


def test_variables_that_load_code_or_carry_secrets_are_refused(program: Program) -> None:
    files = [
        str(
            write_scenario(
                program.folder / f"{name}.yaml",
                null_scenario({"baseline": []}, environment={name: "value"}),
            )
        )
        for name in REFUSED
    ]
    for path in files[:1]:
        finished = program.call("run", path)
        assert finished.code == 2
        assert "a scenario may not set LD_PRELOAD; if you trust it, use --allow-env" in finished.err
        assert not program.results_folder.exists()


def test_variables_that_change_speed_are_set_in_the_worker(program: Program) -> None:
    show = {"use": "faulty", "fault": "show", "value": ["OMP_NUM_THREADS", "BASH_ENV"]}
    scenario = null_scenario({"baseline": [show]}, environment={"OMP_NUM_THREADS": "3"})
    shown = program.run(scenario, "--quiet").results[0].ranks[0].evidence["faulty"]
    assert shown == {"OMP_NUM_THREADS": "3", "BASH_ENV": None}


def test_any_variable_can_be_set_when_the_scenario_is_trusted(program: Program) -> None:
    show = {"use": "faulty", "fault": "show", "value": ["BASH_ENV"]}
    scenario = null_scenario({"baseline": [show]}, environment={"BASH_ENV": "/x"})
    finished = program.run(scenario, "--quiet", "--allow-env")
    assert finished.results[0].ranks[0].evidence["faulty"] == {"BASH_ENV": "/x"}
    assert "--allow-env" in finished.results[0].command


def test_the_shell_itself_understands_the_command(finished: Finished) -> None:
    row = row_of(finished)
    text = (finished.program.results_folder / row.folder / "command.txt").read_text("utf8")
    script = 'exec printf "%s\\0" ' + text.rstrip("\n").rsplit("\n", maxsplit=1)[1]
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == list(row.command)
