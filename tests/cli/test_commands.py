"""Commands enter by one door, ours and those of strangers: listed without an import, named when
they are broken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from cli.program import call, start, write_nulls
from documented import files_of, install_page

from accel_bench.analysis.statistics.sequential import GATE_CODES
from accel_bench.cli.commands import (
    DESCRIPTIONS,
    GROUP,
    MAXIMUM_BYTES,
    RENAMED,
    find_commands,
)
from accel_bench.cli.groups import VERBS
from accel_bench.cli.help import find_topics
from accel_bench.cli.main import app
from accel_bench.cli.output import AnyFormat
from accel_bench.documents.load_toml import load_toml
from accel_bench.documents.presets import presets_root
from accel_bench.documents.program import RESULTS
from accel_bench.errors import AccelBenchError
from accel_bench.machine.caches import VARIABLE

CATALOG = ("models", "devices", "prices", "stacks")

STRANGER = '''\
import typer


def greet(name: str = typer.Argument("you")) -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")


def unresolved(name: "Missing") -> None:
    """Greet nobody."""
'''

PYPROJECT = {
    "accel_bench.commands": {
        "greet": "stranger.hello:greet",
        "run": "stranger.hello:greet",
        "broken": "stranger.broken:main",
        "number": "stranger.hello:__doc__",
        "unresolved": "stranger.hello:unresolved",
        "results.praise": "stranger.hello:greet",
        "results.list": "stranger.hello:greet",
        "fruits.list": "stranger.hello:greet",
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
    (package / "sample_configurations" / "help").mkdir()
    topics = {"manners": b"Be kind.\n", "latin": b"\xe9", "long": b"x" * (MAXIMUM_BYTES + 1)}
    topics |= {name: b"Of a stranger.\n" for name in ("run", "commands", "numbers")}
    for name, text in topics.items():
        (package / "sample_configurations" / "help" / f"{name}.txt").write_bytes(text)
    greet = '[greet]\ntitle = "Decide"\nhelp = "Greet somebody first."\n'
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


@pytest.mark.box
def test_a_stranger_s_command_is_listed_helped_called_and_ours_keep_their_names(
    stranger: Path,
) -> None:
    listed = call("--help", PYTHONPATH=str(stranger)).out
    first, _, others = listed.partition("Of other distributions:")
    assert "  greet      Greet somebody first.\n" in first and "\n  run      " in first
    names = others.partition("\n\n")[0].split()
    assert names == ["a-stranger:run", "broken", "fruits", "number", "unresolved"]
    helped = call("greet", "--help", PYTHONPATH=str(stranger)).out
    assert helped.startswith("Usage: accel-bench greet [OPTIONS] [name]")
    assert call("greet", "world", PYTHONPATH=str(stranger)).out == "hello world\n"
    assert call("a-stranger:run", PYTHONPATH=str(stranger)).out == "hello you\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("number", "stranger.hello:__doc__ is neither a function nor a typer.Typer"),
        ("unresolved", "NameError: name 'Missing' is not defined"),
    ],
)
def test_a_broken_command_is_named_with_its_distribution_and_harms_no_other(
    stranger: Path, name: str, reason: str
) -> None:
    done = call(name, PYTHONPATH=str(stranger))
    assert done.code == 2
    assert done.err == f"error: the command {name!r} of a-stranger 1.0 is broken: {reason}\n"
    assert call("--version", PYTHONPATH=str(stranger)).code == 0


def test_what_is_built_for_another_accel_bench_is_refused_before_it_is_imported(
    stranger: Path,
) -> None:
    metadata_file = stranger / "a_stranger-1.0.dist-info" / "METADATA"
    metadata_file.write_text(metadata_file.read_text() + "Requires-Dist: accel-bench>=9\n")
    done = call("broken", PYTHONPATH=str(stranger))
    assert "'broken' of a-stranger 1.0 is broken: built for accel-bench>=9; this is " in done.err
    assert "upgrade accel-bench: " in done.err and "no_such_library" not in done.err
    assert call("greet", PYTHONPATH=str(stranger)).code == 2


def test_the_command_of_the_documentation_takes_fifteen_lines_and_works(tmp_path: Path) -> None:
    assert len(files_of("commands.md")["acme_slowest/__init__.py"].splitlines()) <= 15
    site = install_page("commands.md", tmp_path)
    assert call("run", str(write_nulls(tmp_path)), "-q", folder=tmp_path).code == 0
    listed = call("--help", PYTHONPATH=str(site)).out
    assert "  slowest  Print the slowest stack that is stored.\n" in listed
    done = call("slowest", folder=tmp_path, PYTHONPATH=str(site))
    assert re.fullmatch(r"(baseline|other): [\d,]+ tokens/s\n", done.out), done.err


@pytest.mark.box
def test_a_library_that_is_missing_stands_in_the_list(stranger: Path) -> None:
    metadata_file = stranger / "a_stranger-1.0.dist-info" / "METADATA"
    metadata_file.write_text(metadata_file.read_text() + "Requires-Dist: no-such-library>=2\n")
    listed = call("--help", PYTHONPATH=str(stranger)).out
    assert "  greet      no-such-library>=2 is not installed\n" in listed


@pytest.mark.box
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


@pytest.mark.box
def test_the_shell_completes_commands_of_a_noun(stranger: Path) -> None:
    asked = {"COMP_WORDS": "accel-bench results p", "COMP_CWORD": "2"}
    done = start(_ACCEL_BENCH_COMPLETE="complete_bash", PYTHONPATH=str(stranger), **asked)
    assert sorted(done.out.split()) == ["pivot", "praise"]


def test_the_shell_completes_nothing_behind_a_command_that_there_is_not() -> None:
    asked = {"COMP_WORDS": "accel-bench nothing ", "COMP_CWORD": "2"}
    done = start(_ACCEL_BENCH_COMPLETE="complete_bash", **asked)
    assert "error" not in done.err and "Traceback" not in done.err


def test_a_stranger_s_command_joins_a_noun_and_a_noun_is_made_of_what_joins_it(
    stranger: Path,
) -> None:
    path = str(stranger)
    assert "\n  praise\n" in call("results", "--help", PYTHONPATH=path).out
    assert call("results", "praise", "them", PYTHONPATH=path).out == "hello them\n"
    assert call("fruits", PYTHONPATH=path).out == "hello you\n"
    assert "List all runs" in call("results", "list", "--help", PYTHONPATH=path).out
    assert call("help", "manners", PYTHONPATH=path).out == "Be kind.\n"
    listed = call("help", "commands", PYTHONPATH=path).out
    assert "greet" in listed and "accel-bench fruits COMMAND:\n  list\n" in listed


def test_topics_of_a_stranger_hide_no_command_and_no_topic_of_ours(stranger: Path) -> None:
    path, ours = str(stranger), find_topics()
    assert call("help", "run", PYTHONPATH=path).out.startswith("Usage: accel-bench run ")
    assert "greet" in call("help", "commands", PYTHONPATH=path).out
    assert call("help", "numbers", PYTHONPATH=path).out == f"{ours['numbers']}\n"
    listed = call("help", PYTHONPATH=path)
    assert (listed.code, "  manners " in listed.out) == (0, True), listed.err
    assert "latin" not in listed.out and "  long" not in listed.out


@pytest.mark.box
@pytest.mark.parametrize("noun", ["results", "scenarios", "plugins", "catalog", "bundle", "op"])
def test_commands_of_a_noun_stand_on_a_line_each_and_the_common_ones_first(noun: str) -> None:
    text = call(noun, "--help", COLUMNS="80").out.partition("Commands:\n")[2]
    lines = [line for line in text.splitlines() if line and not line.endswith(":")]
    assert [line for line in lines if not re.fullmatch(r"  [a-z]+ +\S.*\.", line)] == []
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines]
    common = [name for name in VERBS if name in names]
    assert names[: len(common)] == common and (common or noun == "catalog")


@pytest.mark.box
@pytest.mark.parametrize(
    "noun", ["scenarios", "plugins", "bundle", "op", *(f"catalog {one}" for one in CATALOG)]
)
def test_a_noun_alone_lists(noun: str, tmp_path: Path) -> None:
    words = noun.split()
    listed = call(*words, "list", folder=tmp_path)
    assert listed.code == 0 and listed.out == call(*words, folder=tmp_path).out
    as_json = call(*words, "--format", "json", folder=tmp_path)
    assert json.loads(as_json.out) == json.loads(call(*words, "list", "--format", "json").out)


@pytest.mark.box
def test_the_catalog_alone_lists_its_kinds() -> None:
    done = call("catalog")
    assert done.code == 0
    assert all(f"\n  {one} " in done.out for one in CATALOG)


FORMER = load_toml((presets_root() / RENAMED).read_text("utf8"), RENAMED).data


@pytest.mark.box
@pytest.mark.parametrize(("former", "new"), FORMER["commands"].items())
def test_a_former_name_is_answered_with_a_command_that_there_is(former: str, new: str) -> None:
    done = call(*former.split(), "--help")
    assert done.code == 2
    assert done.err == f"error: `accel-bench {former}` is now `accel-bench {new}`\n"
    assert call(*new.split(), "--help").code == 0


def test_every_topic_is_listed_printed_and_fits_79_columns() -> None:
    listed = call("help").out
    for topic, text in find_topics().items():
        assert call("help", topic).out == f"{text}\n"
        assert re.search(rf"\n  {topic} +\S.*\.\n", f"{listed}\n")
        assert max(map(len, text.splitlines())) <= 79
    assert {"exit-codes", "formats", "environment", "numbers"} <= {*find_topics()}
    assert call("help", "results", "list").out == call("results", "list", "--help").out
    assert "did you mean 'numbers'" in call("help", "number").err


def test_topics_name_all_exit_codes_and_variables() -> None:
    topics = find_topics()
    codes = {one.exit_code for one in [AccelBenchError, *AccelBenchError.__subclasses__()]}
    codes |= {*GATE_CODES.values()}
    assert all(f"\n  {code}    " in topics["exit-codes"] for code in codes)
    for form in get_args(get_args(AnyFormat)[0]):
        assert re.search(rf"^  {form} +\S", topics["formats"], re.MULTILINE)
    for variable in (RESULTS, "ACCEL_BENCH_PRICES", VARIABLE):
        assert f"\n  {variable} " in topics["environment"]


def test_the_help_of_run_fits_on_two_screens_and_names_every_option() -> None:
    lines = call("run", "--help", COLUMNS="80").out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "  --max-runs N         Refuse a plan with more runs.  [default: 1000]\n" in text
    assert "  --format WORD    How to print: table, json, csv, markdown, html.  [default:" in text


def test_the_help_ends_with_two_lines_that_say_where_the_rest_is() -> None:
    *_, blank, first, second = call("--help", COLUMNS="80").out.splitlines()
    assert (blank, "NOUN --help all of a noun" in first) == ("", True)
    assert second.startswith("  Also: help exit-codes")


def every_command(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of all commands and nouns."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name)
        if hasattr(command, "list_commands"):
            yield from every_command(command, (*words, name))


@pytest.mark.box
def test_every_command_s_help_fits_80_columns_and_two_screens_and_is_cut_nowhere() -> None:
    found = [*every_command(typer.main.get_command(app))]
    assert len(found) > 50
    for words in found:
        shown = call(*words, "--help", COLUMNS="80").out
        below = [other[-1] for other in found if other[:-1] == words]
        assert all(f"\n  {name} " in shown for name in below), words
        lines = shown.splitlines()
        assert len(lines) <= 100 and max(map(len, lines)) <= 80, words
        assert not [line for line in lines if re.search(r"<\w|\w\.\.\.$|x>=", line)], words


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
    assert of_commands and not {*of_commands, "pydantic"} & modules


@pytest.mark.box
def test_every_command_of_ours_has_a_line_that_fits_80_columns_whole() -> None:
    ours = [one for one in find_commands().values() if one.entry is None or one.entry.is_ours]
    assert [one.name for one in ours if not one.line.endswith(".")] == []
    every = call("help", "commands", COLUMNS="80").out
    assert all(f" {one.line}\n" in every for one in ours)
    assert "..." not in every
    printed = call("--help", COLUMNS="80").out.partition("Measure and compare:")[2]
    names = re.findall(r"^  ([a-z-]+)  +\S.*\.$", printed, re.MULTILINE)
    assert names[:3] == ["run", "compare", "report"]
    assert len(names) <= 18 and "..." not in printed
