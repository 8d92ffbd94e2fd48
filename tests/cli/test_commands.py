"""Commands enter by one door, ours and those of strangers: listed without an import, named when
they are broken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cli.program import call, start, write_nulls

from accel_bench.cli.commands import DESCRIPTIONS, GROUP, find_commands

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
FILE = re.compile(r"^`([a-z_/]+\.(?:toml|py))`:\n\n```[a-z]+\n(.*?)^```", re.MULTILINE | re.DOTALL)

STRANGER = '''\
import typer


def greet(name: str = typer.Argument("you")) -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")
'''

PYPROJECT = {
    "accel_bench.commands": {
        "greet": "stranger.hello:greet",
        "run": "stranger.hello:greet",
        "broken": "stranger.broken:main",
        "number": "stranger.hello:__doc__",
    },
    "accel_bench.samples": {"stranger": "stranger"},
}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder in which a distribution with commands is installed."""
    package = tmp_path / "stranger"
    (package / "sample_configurations").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "hello.py").write_text(STRANGER)
    (package / "broken.py").write_text("import no_such_library\n")
    greet = '[greet]\ntitle = "Measure"\nhelp = "Greet somebody first."\n'
    (package / "sample_configurations" / DESCRIPTIONS).write_text(greet)
    info = tmp_path / "a_stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-stranger\nVersion: 1.0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in PYPROJECT.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    return tmp_path


def test_a_stranger_s_command_is_listed_helped_called_and_ours_keep_their_names(
    stranger: Path,
) -> None:
    listed = call("--help", PYTHONPATH=str(stranger)).out
    measure, _, others = listed.partition("Of other distributions:")
    assert "  greet      Greet somebody first.\n" in measure and "\n  run  " in measure
    assert others.split() == ["a-stranger:run", "broken", "number"]
    helped = call("greet", "--help", PYTHONPATH=str(stranger)).out
    assert helped.startswith("Usage: accel-bench greet [OPTIONS] [name]")
    assert call("greet", "world", PYTHONPATH=str(stranger)).out == "hello world\n"
    assert call("a-stranger:run", PYTHONPATH=str(stranger)).out == "hello you\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("number", "stranger.hello:__doc__ is neither a function nor a typer.Typer"),
    ],
)
def test_a_broken_command_is_named_with_its_distribution_and_harms_no_other(
    stranger: Path, name: str, reason: str
) -> None:
    done = call(name, PYTHONPATH=str(stranger))
    assert done.code == 2
    assert done.err == f"error: the command {name!r} of a-stranger 1.0 is broken: {reason}\n"
    assert call("--version", PYTHONPATH=str(stranger)).code == 0


def test_the_command_of_the_documentation_takes_fifteen_lines_and_works(tmp_path: Path) -> None:
    files = dict(FILE.findall(PAGE.read_text(encoding="utf8")))
    assert len(files["acme_slowest/__init__.py"].splitlines()) <= 15
    for name, text in files.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(text, encoding="utf8")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    pip += ["--no-deps", "--no-build-isolation", "--target", str(site), str(tmp_path / "source")]
    subprocess.run(pip, check=True, capture_output=True)
    assert call("run", str(write_nulls(tmp_path)), "-q", folder=tmp_path).code == 0
    listed = call("--help", PYTHONPATH=str(site)).out
    assert "  slowest      Print the slowest stack that is stored.\n" in listed
    done = call("slowest", folder=tmp_path, PYTHONPATH=str(site))
    assert re.fullmatch(r"(baseline|other): [\d,]+ tokens/s\n", done.out), done.err


def test_a_library_that_is_missing_stands_in_the_list(stranger: Path) -> None:
    metadata_file = stranger / "a_stranger-1.0.dist-info" / "METADATA"
    metadata_file.write_text(metadata_file.read_text() + "Requires-Dist: no-such-library>=2\n")
    listed = call("--help", PYTHONPATH=str(stranger)).out
    assert "  greet      no-such-library>=2 is not installed\n" in listed


def test_a_misspelt_command_gets_the_nearest_name() -> None:
    done = call("reprot")
    assert (done.code, done.err) == (
        2,
        "error: no command is called 'reprot'; did you mean 'report'?\n",
    )


def test_the_shell_completes_a_stranger_s_command(stranger: Path) -> None:
    asked = {"COMP_WORDS": "accel-bench gre", "COMP_CWORD": "1"}
    done = start(_ACCEL_BENCH_COMPLETE="complete_bash", PYTHONPATH=str(stranger), **asked)
    assert done.out.split() == ["greet"]


def test_the_shell_completes_nothing_behind_a_command_that_there_is_not() -> None:
    asked = {"COMP_WORDS": "accel-bench nothing ", "COMP_CWORD": "2"}
    done = start(_ACCEL_BENCH_COMPLETE="complete_bash", **asked)
    assert "error" not in done.err and "Traceback" not in done.err


def test_the_list_imports_no_command() -> None:
    program = (
        "import json, sys\n"
        "from accel_bench.cli.main import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try:\n    main()\n"
        "finally:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    modules = set(json.loads(done.stderr.strip().rpartition("\n")[2]))
    of_commands = {entry.module for entry in metadata.entry_points(group=GROUP)}
    assert of_commands and not of_commands & modules


def test_every_command_of_ours_has_a_line_that_fits_80_columns_whole() -> None:
    ours = [one for one in find_commands().values() if one.entry.is_ours]
    assert len(ours) > 20
    assert [one.name for one in ours if not one.line.endswith(".")] == []
    printed = call("--help", COLUMNS="80").out
    assert all(f" {one.line}\n" in printed for one in ours)
    assert "..." not in printed.partition("Measure:")[2]
