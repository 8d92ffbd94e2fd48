"""The program itself: its version, its errors, its completion, and that it has one form."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.program import call, start, write_nulls

from accel_bench import __version__

COMMANDS = ("run", "compare", "results")


def installed_script() -> Path:
    """The console script beside this interpreter."""
    return Path(sys.executable).parent / "accel-bench"


def test_the_version_is_the_package_s() -> None:
    assert call("--version").out == f"accel-bench {__version__}\n"


def test_help_names_every_command() -> None:
    printed = call("--help").out
    assert all(f"\n  {command} " in printed for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = call(command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: accel-bench {command} ")


def test_without_arguments_the_program_shows_its_help_and_asks_for_a_command() -> None:
    done = call()
    assert done.code == 2
    assert "Measure and compare:" in done.out + done.err


@pytest.mark.skipif(not installed_script().exists(), reason="the console script is not installed")
@pytest.mark.parametrize("arguments", [["--version"], ["run", "--help"], ["scenarios"]])
def test_the_module_is_the_same_program_as_the_script(arguments: list[str]) -> None:
    command = [str(installed_script()), *arguments]
    # Without `env`, the script would get COLUMNS too, which readline sets behind Python's back.
    script = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    module = start(*arguments)
    assert (module.code, module.out) == (script.returncode, script.stdout)


def test_the_module_calls_itself_by_the_program_s_name() -> None:
    assert "Usage: accel-bench run" in start("run", "--help").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_usual_shells_get_a_script_that_completes(shell: str) -> None:
    done = start(_ACCEL_BENCH_COMPLETE=f"source_{shell}")
    assert done.code == 0
    assert "accel-bench" in done.out
    assert "_ACCEL_BENCH_COMPLETE" in done.out


def test_completion_offers_the_commands() -> None:
    done = start(_ACCEL_BENCH_COMPLETE="complete_bash", COMP_WORDS="accel-bench ", COMP_CWORD="1")
    assert set(COMMANDS) <= set(done.out.split())


def test_completion_can_be_installed() -> None:
    assert "--install-completion" in call("--help").out
    assert "--show-completion" in call("--help").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no-such-file.yaml"], "'no-such-file.yaml'"),
        (["run", "quickstrat", "--dry-run"], "did you mean 'quickstart'"),
        pytest.param(
            *(["scenarios", "show", "quickstrat"], "did you mean 'quickstart'"),
            marks=pytest.mark.box,
        ),
        pytest.param(
            *(["catalog", "stacks", "show", "torch-compiel"], "did you mean 'torch-compile'"),
            marks=pytest.mark.box,
        ),
        pytest.param(
            *(["catalog", "models", "show", "gpt3"], "did you mean 'gpt2'"), marks=pytest.mark.box
        ),
        pytest.param(*(["plugins", "show", "lor"], "did you mean 'lora'"), marks=pytest.mark.box),
        (["results", "list", "--results", "nowhere"], "nowhere"),
    ],
)
def test_an_error_is_one_message_that_names_the_culprit_and_no_traceback(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("error: ") == 1
    assert "Traceback" not in done.err
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--rounds", "0"],
        ["run", "--rounds", "many"],
        ["run", "--within", "3"],
        ["run", "--device", "tpu"],
        ["run", "--format", "xml"],
        ["run", "--timeout", "-1"],
        ["run", "--max-runs", "0"],
        ["run", "--retries", "-1"],
        ["run", "--no-such-option"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.code == 2
    assert arguments[-2 if len(arguments) > 2 else -1] in done.err
    assert "Traceback" not in done.err


@pytest.mark.box
@pytest.mark.parametrize(
    ("command", "former", "successor"),
    [
        ("run", "--repeats", "--rounds"),
        ("gate quickstart --stack baseline", "--repeats", "--rounds"),
        ("gate quickstart --stack baseline", "--max-pairs", "--max-rounds"),
        ("compare a b", "--reference", "`accel-bench results regressions`"),
        ("run", "--stack", "--only"),
        ("fit quickstart", "--at-most", "--max"),
        ("recommend", "--at-most", "--metric-below"),
    ],
)
def test_the_former_name_of_an_option_is_answered_with_the_new_one(
    command: str, former: str, successor: str
) -> None:
    done = call(*command.split(), former, "3")
    assert done.code == 2
    assert done.err == f"error: there is no option {former}; did you mean {successor}?\n"
    assert former not in call(command.split(maxsplit=1)[0], "--help").out


@pytest.mark.box
def test_run_and_gate_share_their_options() -> None:
    def options(command: str) -> set[str]:
        return set(re.findall(r"--[a-z-]+", call(command, "--help").out))

    shared = options("run") & options("gate")
    assert shared >= {"--plugin", "--set", "--timeout", "--resume", "--format", "--rounds"}
    own = {"--only", "--seeds", "--repeat-round", "--no-baseline", "--verbose", "--race"}
    own |= {"--tag", "--reference-point", "--interleave", "--family", "--section"}
    own |= {"--fail-if-slower", "--within"}
    assert options("run") - shared == own


def test_a_reader_that_goes_away_causes_no_traceback(tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "accel_bench", "run", str(scenario), "--dry-run"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""
