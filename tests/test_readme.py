"""The README and the first pages: commands run, samples load, code works, links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import plugins_page
import pytest
import yaml
from analysis_factory import STEADY, make_experiment, make_rounds, make_summary
from cli.program import call, write_nulls
from fault_plugins.distribution import install
from several_ranks.scenarios import forking

from accel_bench.documents.presets import find_presets
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.plugins.shipped import shipped
from accel_bench.report.formats import render
from accel_bench.scenario.find import read_draft
from accel_bench.store.database import open_store

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf8")
FIRST_STEPS = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf8")
PLUGIN = (ROOT / "docs" / "write-a-plugin.md").read_text(encoding="utf8")


pytestmark = [pytest.mark.long, pytest.mark.box]


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in one of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for language, body in found if language in languages]


def commands() -> Iterator[str]:
    """Every command line of the README and of the first steps, its comment cut off."""
    for block in blocks(TEXT + FIRST_STEPS, "console", "sh"):
        for line in block.splitlines():
            command = line.removeprefix("$ ").partition("  #")[0].strip()
            if command and not command.startswith("#"):
                yield command


def is_ours(command: str) -> bool:
    """Whether it calls the program."""
    return command.startswith(("accel-bench", "python -m accel_bench"))


FORKING = ("--set", "launcher=forking")

SMALL = (
    *("--set", "measure.steps=2", "--set", "measure.warmup=1"),
    *("--set", "model.overrides.num_hidden_layers=1", "--set", "data.sequence_length=32"),
    *("--set", "data.limit_bytes=100000"),
)
"""What makes a step of the quickstart short."""

FEW = (
    *("--rounds", "1", *SMALL),
    *("--set", "stacks.torch-compile.torch-compile.backend=eager"),
    *FORKING,
)
"""What makes a run of the quickstart short; inductor alone takes most of a minute. The demo of
`make` and the tests of the launchers start workers as a reader's program does."""


RUN_ELSEWHERE = ("dpo-cpu", "inference-cpu")
"""Scenarios that other tests run; here their plan is printed."""


SHORTER = {
    "doctor": ("--no-noise",),  # plugins/doctor/tests measures the noise.
    "scenarios count": (*SMALL, *FORKING),
    "estimate": (
        "--only",
        "baseline",
        "--no-limits",
    ),  # plugins/advise/tests/test_estimate.py looks for them
    # A scenario without torch has no process group to join.
    "profile": (*SMALL, *FORKING),
    "scaling": ("--rounds", "1", "--set", "parallel=none", "--oversubscribe", *FORKING),
}
"""What keeps other commands from taking minutes."""


def shortened(arguments: list[str]) -> list[str]:
    """Return a command's arguments, with those that keep it from measuring for minutes."""
    if not {*RUN_ELSEWHERE}.isdisjoint(arguments):
        return [*arguments, "--dry-run"]
    if "--race" in arguments:  # it needs rounds after its first look
        return [*arguments, "--rounds", "6", *FORKING]
    for words, more in SHORTER.items():
        if " ".join(arguments).startswith(words):
            return [*arguments, *more]
    if arguments[0] not in ("run", "gate") or "--dry-run" in arguments:
        return arguments
    own_file = any(word.endswith(".yaml") for word in arguments)
    seeds = ("--seeds", "2") if "--seeds" in arguments else ()
    return [*arguments, *(("--rounds", "1", *seeds, *FORKING) if own_file else FEW)]


@pytest.fixture(autouse=True)
def ids_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """To save a file while the tests run would change the ids of experiments."""
    monkeypatch.setenv("GIT_DIR", os.devnull)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it: a scenario of theirs, and results of one run."""
    folder = tmp_path_factory.mktemp("readme")
    write_nulls(folder, "my.yaml", stacks="{baseline: [], torch-compile: []}")
    done = call("run", "my.yaml", "-q", folder=folder)
    assert done.code == 0, done.err
    return folder


SIMULATES = "accel-bench estimate"
"""Beginning of a command that starts a process with torch, as tests of plugins/advise do."""


# In this process; tests/cli/test_main.py starts the program as a shell does.
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=pytest.mark.release if one.startswith(SIMULATES) else ())
        for one in commands()
        if is_ours(one)
    ],
)
def test_a_command_runs(
    command: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    command, _, target = command.partition(" > ")
    words = [stored_id(workplace) if word == "ID" else word for word in shlex.split(command)]
    arguments = words[3:] if words[0] == "python" else words[1:]
    short = shortened(arguments)
    trains = "my.yaml" not in short
    with forking(tmp_path, trains=trains) if "launcher=forking" in short else nullcontext():
        done = call(*short)
    # A gate needs five rounds, and has one here: it stays open.
    assert done.code == (5 if "gate" in words else 0), done.out + done.err
    assert done.out
    if target:
        (workplace / "written.yaml").write_text(done.out)
        assert call("scenarios", "check", "written.yaml").code == 0


def test_the_options_of_an_estimate_are_those_of_the_command() -> None:
    (command,) = [one for one in commands() if one.startswith(SIMULATES)]
    known = call("estimate", "--help").out
    options = [word for word in shlex.split(command) if word.startswith("--")]
    assert options
    assert [word for word in options if word not in known] == []


@pytest.mark.release
def test_the_quickstart_starts_a_worker_as_a_reader_does(tmp_path: Path) -> None:
    few = FEW[: FEW.index("launcher=forking") - 1]
    done = call("run", *few, "--only", "baseline", folder=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "baseline" in done.out


def stored_id(folder: Path) -> str:
    """Id of a run that is stored."""
    with open_store(folder / "accel_bench_results", write=False) as store:
        return store.results()[0].run_id


def test_its_commands_name_stacks_of_the_file_that_they_write() -> None:
    stacks = read_draft(find_presets("scenarios")["quickstart"]).data["stacks"]
    named = re.findall(r"--(?:stack|against) ([\w-]+)", TEXT + FIRST_STEPS)
    (compared,) = re.findall(r"^accel-bench compare ([\w-]+) ([\w-]+)", FIRST_STEPS, re.MULTILINE)
    assert len(named) >= 4
    assert {*named, *compared} <= set(stacks)


def test_the_index_of_the_documentation_names_each_page_once() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf8")
    linked = re.findall(r"^- \[[^\]]+\]\(([\w-]+\.md)\): ", index, re.MULTILINE)
    assert sorted(linked) == sorted(pages)
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf8").partition("nav:")[2]
    assert sorted(re.findall(r"[\w-]+\.md", navigation)) == sorted([*pages, "README.md"])


def test_the_other_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    others = [shlex.split(command) for command in commands() if not is_ours(command)]
    assert others
    for words in others:
        assert words[0] in ("make", "pip", "git", "cd", "."), words
        assert words[0] != "make" or words[1] in targets


def test_it_is_short_and_no_line_is_wider_than_120_characters() -> None:
    lines = TEXT.splitlines()
    assert 70 <= len(lines) <= 110
    assert [line for line in lines if len(line) > 120] == []


FENCED = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)


def test_every_relative_link_of_every_page_leads_to_a_file() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    pages += [ROOT / "benchmarks" / "README.md", *(ROOT / "plugins").glob("*/README.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text("utf8")))
        if ":" not in target and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert broken == []


def test_its_output_is_real_and_not_a_placeholder() -> None:
    printed, chats = blocks(TEXT, "text")
    header, rows = table_of(printed)
    made = make_experiment("baseline")
    summary = make_summary([made], make_rounds(made, STEADY), baseline="baseline")
    assert sorted(header) == sorted(table_of(render([summary], "table"))[0])
    # A long name goes on in the next line.
    names = (
        "\n".join(row.split()[0] for row in rows if row[0] != " ").replace("-\n", "-").split("\n")
    )
    quickstart = read_draft(find_presets("scenarios")["quickstart"])
    assert names == list(quickstart.data["stacks"])
    assert printed.splitlines()[0] == "quickstart"
    assert sorted(table_of(chats)[0]) == sorted(header)
    (scenario,) = blocks(TEXT, "yaml")
    assert all(f"\n{name} " in chats for name in yaml.safe_load(scenario)["stacks"])


def table_of(printed: str) -> tuple[list[str], list[str]]:
    """The words over a table's rule, and the rows under it."""
    lines = printed.splitlines()
    rule = next(number for number, line in enumerate(lines) if set(line) == {"─"})
    end = lines.index("", rule) if "" in lines[rule:] else len(lines)
    before = lines[:rule][::-1]
    start = rule - before.index("") if "" in before else 0
    return " ".join(lines[start:rule]).split(), lines[rule + 1 : end]


@pytest.mark.parametrize("source", blocks(PLUGIN, "python"))
def test_its_plugins_pass_the_check(source: str, tmp_path: Path) -> None:
    compile(source, "README.md", "exec")
    (entry,) = re.findall(r'`([\w-]+) = "my_package:(\w+)"`', PLUGIN)
    install(tmp_path, "my-package", dict([entry]), source)
    done = call("plugins", "check", entry[0], PYTHONPATH=str(tmp_path))
    assert (done.code, done.out) == (0, f"{entry[0]}: ok\n")


@pytest.mark.parametrize("source", blocks(TEXT + FIRST_STEPS, "yaml"))
def test_its_scenarios_plan(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-data.jsonl").write_text('{"text": "some words"}\n' * 50)
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "Why?"}]}\n')
    (tmp_path / "some.yaml").write_text(source)
    plan = make_plan(read_draft(tmp_path / "some.yaml"), read_machine(), PlanRequest())
    assert plan.planned


def test_the_page_of_all_plugins_is_what_ships() -> None:
    assert plugins_page.PAGE.read_text("utf8") == plugins_page.page(), (
        "write it anew: python tests/plugins_page.py"
    )


def test_the_page_of_accelerations_names_every_one_that_stands_in_a_stack() -> None:
    text = (ROOT / "docs" / "accelerations.md").read_text("utf8")
    ours = {name for name, one in shipped().items() if not one.fills or "parallel" in one.fills}
    beside = {"example", "hf-trainer", "ddp"}  # A template, an engine, and what every rank has.
    assert {name for name in ours - beside if f"`{name}`" not in text} == set()


def test_every_path_that_it_names_is_there() -> None:
    paths = re.findall(r"`((?:core|plugins|worker|benchmarks)/[\w./]+)`", TEXT)
    assert paths
    for path in paths:
        places = [ROOT / path, ROOT / "core" / "accel_bench" / path]
        assert any(place.exists() for place in places), path


def test_it_names_no_path_of_a_machine() -> None:
    assert not re.search(rf"/(home|root|work|tmp|Users)/|{re.escape(os.sep)}site-packages", TEXT)


def test_make_demo_ends_in_the_command_that_it_says() -> None:
    dry = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "demo"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if dry.returncode:
        pytest.skip("make is not here")
    assert dry.stdout.rstrip().endswith("accel-bench run")
