"""The laws of the house, held against the code and against the running program."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from cli.program import call, start, write_nulls
from fault_plugins.distribution import install

from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "accel_bench"
OURS = sorted(
    path
    for top in ("core", "plugins", "benchmarks")
    for path in (ROOT / top).rglob("*.py")
    if "tests" not in path.relative_to(ROOT).parts
)
"""Every module that is no test."""

HEAVY = frozenset(
    "accelerate datasets matplotlib numpy pandas peft plotly pyarrow scipy tokenizers torch "
    "transformers".split()
)
"""Packages that take seconds to import; ruff's TID253 keeps them off the top of modules."""

WITNESS = """\
import pathlib, sys
from accel_bench import Plugin, hookimpl

pathlib.Path({folder!r}, __name__).write_text("imported")


class Witness(Plugin):
    '''Reports what its process has imported.'''

    @hookimpl
    def report_evidence(self, run):
        return {{"modules": sorted(sys.modules)}}
"""


def name_of(path: Path) -> str:
    """A module's path, as a test's name."""
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf8"), str(path))


@functools.cache
def texts_of(path: Path) -> list[ast.Constant]:
    """The texts in a module's syntax tree."""
    constants = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant))
    return [node for node in constants if isinstance(node.value, str)]


# Law 1: registered means selected.


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two installed distributions whose modules leave a file when they are imported."""
    folder = tmp_path / "site"
    folder.mkdir()
    source = WITNESS.format(folder=str(tmp_path))
    for name in ("first", "second"):
        install(folder, f"accel-bench-{name}", {name: "Witness"}, source)
    return folder


def imported(folder: Path) -> set[str]:
    """Which of the two modules have left their file."""
    names = {"accel_bench_first", "accel_bench_second"}
    return {path.name for path in folder.iterdir()} & names


@pytest.mark.box
@pytest.mark.parametrize(
    "arguments",
    [
        ["plugins"],
        ["plugins", "--format", "json"],
        ["catalog", "stacks"],
        ["catalog", "models"],
    ],
)
def test_listing_imports_no_plugin(arguments: list[str], site: Path, tmp_path: Path) -> None:
    done = call(*arguments, PYTHONPATH=str(site))
    assert not done.code, done.err
    assert imported(tmp_path) == set()
    if "plugins" in arguments:
        assert "accel-bench-first" in done.out


def test_a_plan_imports_the_plugins_that_it_names_and_no_other(site: Path, tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path, stacks="{baseline: [], other: [first]}")
    done = call("run", str(scenario), "--dry-run", PYTHONPATH=str(site))
    assert done.code == 0, done.err
    assert imported(tmp_path) == {"accel_bench_first"}


def test_what_was_active_is_what_was_named_in_the_order_of_the_calls(tmp_path: Path) -> None:
    path = write_nulls(tmp_path, stacks="{both: [example, torch-compile]}")
    (planned,) = make_plan(read_draft(path), read_machine(), PlanRequest()).planned
    names = [member.name for member in planned.active.plugins]
    assert names == ["example", "torch-compile", "causal-lm", *["null"] * 4, "local", "memory"]


def test_two_plans_share_no_plugin_instance(tmp_path: Path) -> None:
    draft = read_draft(write_nulls(tmp_path, stacks="{one: [example]}"))
    members = [
        make_plan(draft, read_machine(), PlanRequest()).planned[0].active.plugins for _ in range(2)
    ]
    assert not {id(m.instance) for m in members[0]} & {id(m.instance) for m in members[1]}


# Law 2: the measured thing and the measuring thing share no process.


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one run, for the commands that read them."""
    folder = tmp_path_factory.mktemp("laws")
    scenario = write_nulls(folder, stacks="{alone: []}")
    done = call("run", str(scenario), "-q", "--results", str(folder / "results"))
    assert done.code == 0, done.err
    return folder / "results"


LIGHT_COMMANDS = (
    "--help",
    "--version",
    "run --help",
    "run --dry-run",
    "run --dry-run --plugin example --format json",
    "plugins",
    "plugins show torch-compile",
    "plugins check example",
    "doctor --no-noise",
    "scenarios list",
    "scenarios show quickstart",
    "scenarios check quickstart",
    "scenarios schema",
    "catalog stacks",
    "catalog stacks show torch-compile",
    "catalog models",
    "catalog devices",
    "catalog devices show l4",
    "catalog prices",
    "results cost --instance g5.xlarge",
    "results check",
    "compare --help",
    "estimate --help",
    "gate --help",
    "gate quickstart --stack torch-compile --dry-run",
    "results list",
    "results export",
)
"""Commands that measure nothing."""

CHECKS = (
    "catalog models show gpt2",
    "plugins check",
    "plugins check --scenario quickstart",
    "plugins check huggingface",
    "plugins check example --scenario quickstart",
)
"""More of them; each imports plugins, or torch, in another process."""


@pytest.mark.box
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(LIGHT_COMMANDS, id="light"),
        pytest.param(CHECKS, id="checks", marks=pytest.mark.release),
    ],
)
@pytest.mark.long
def test_no_command_but_run_imports_a_heavy_package(
    commands: tuple[str, ...], results: Path, tmp_path: Path
) -> None:
    found = modules_after([command.split() for command in commands], results, tmp_path)
    assert [
        command for command, modules in zip(commands, found, strict=True) if modules & HEAVY
    ] == []


@pytest.mark.parametrize(
    "command",
    ["--help", "run --dry-run", pytest.param("results list", marks=pytest.mark.release)],
)
def test_a_command_alone_imports_no_heavy_package(
    command: str, results: Path, tmp_path: Path
) -> None:
    (found,) = modules_after([command.split()], results, tmp_path)
    assert "accel_bench.cli.main" in found
    assert found & HEAVY == set()
    if command == "--help":
        assert not found & {"accel_bench.machine", "accel_bench.scenario", "pydantic", "sqlalchemy"}


def test_the_parent_of_a_run_imports_no_torch(results: Path, tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path, stacks="{alone: []}")
    (found,) = modules_after([["run", str(scenario), "-q"]], results, tmp_path)
    assert "accel_bench.runner.session" in found
    assert found & (HEAVY - {"numpy", "scipy"}) == set()
    assert not [name for name in found if name.startswith("accel_bench.worker")]


def modules_after(commands: list[list[str]], results: Path, folder: Path) -> list[set[str]]:
    """Names of the modules that one process has imported after each of these commands."""
    program = (
        "import json, pathlib, sys\n"
        "from accel_bench.cli.main import main\n"
        "target, commands, found = sys.argv[1], json.loads(sys.argv[2]), []\n"
        "for command in commands:\n"
        "    sys.argv[1:] = command\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as stop:\n"
        "        assert not stop.code, (command, stop.code)\n"
        "    found.append(sorted(sys.modules))\n"
        "pathlib.Path(target).write_text(json.dumps(found))\n"
    )
    target = folder / "modules.json"
    command = [sys.executable, "-c", program, str(target), json.dumps(commands)]
    environment = {**os.environ, "ACCEL_BENCH_RESULTS": str(results), "GIT_DIR": os.devnull}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return [set(names) for names in json.loads(target.read_text())]


def test_a_worker_without_torch_in_its_scenario_imports_none(site: Path, tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path, stacks="{witnessed: [first]}")
    arguments = ["run", str(scenario), "-q", "--format", "json"]
    done = start(*arguments, folder=tmp_path, PYTHONPATH=str(site))
    assert done.code == 0, done.err
    evidence = json.loads(done.out)["experiments"][0]["evidence"]
    modules = set(evidence["first"]["modules"])
    assert "accel_bench.worker.measurement" in modules
    assert modules & HEAVY == set()
    assert not [name for name in modules if name.startswith(("sqlalchemy", "rich", "typer"))]


# Law 5: core never learns a plugin's name.


def is_ours(entry: metadata.EntryPoint) -> bool:
    """Return True if a plugin ships in the box."""
    return entry.dist is not None and entry.dist.name == "accel-bench"


def boxed_packages() -> dict[str, str]:
    """Packages in the folders of `plugins/` that are no distributions, each with its folder."""
    return {
        package.name: str(package.parent.relative_to(ROOT))
        for package in sorted((ROOT / "plugins").glob("*/accel_bench_*"))
        if not (package.parent / "pyproject.toml").exists()
    }


@pytest.mark.box
def test_a_folder_in_the_box_is_shipped_and_registered_by_the_wheel_accel_bench() -> None:
    packages = boxed_packages()
    assert packages
    entries = metadata.distribution("accel-bench").entry_points
    for package, folder in packages.items():
        assert any(entry.module.partition(".")[0] == package for entry in entries)
        assert (ROOT / folder / "README.md").exists()


@pytest.mark.box
def test_each_list_of_the_projects_settings_names_the_folders_in_the_box_and_no_other() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]
    packages = boxed_packages()
    named, folders = sorted(packages), sorted(packages.values())
    targets = tool["hatch"]["build"]["targets"]
    shipped = [path for path in targets["wheel"]["packages"] if path.startswith("plugins/")]
    assert sorted(shipped) == sorted(f"{folder}/{one}" for one, folder in packages.items())
    assert sorted(one for one in targets["sdist"]["include"] if "plugins/" in one) == folders
    assert sorted(tool["mypy"]["mypy_path"].split(":")) == ["core", *folders]
    roots = tool["importlinter"]["root_packages"]
    for one in (tool["mypy"]["packages"], roots):
        assert sorted(name for name in one if name.startswith("accel_bench_")) == named
    # Distributions of their own are tested too.
    assert set(folders) <= set(tool["pytest"]["ini_options"]["testpaths"])


@functools.cache
def plugin_distributions() -> list[tuple[str, str, list[str]]]:
    """Distribution, package and plugin names of everything in `plugins/`."""
    found = []
    for file in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        text = file.read_text(encoding="utf8")
        (name,) = re.findall(r'^name = "(.+)"$', text, re.MULTILINE)
        entries = re.findall(r'^([\w-]+) = "(accel_bench_\w+):\w+"$', text, re.MULTILINE)
        assert entries, f"{file} has no entry point"
        found.append((name, entries[0][1], [entry for entry, _ in entries]))
    return found


def named_in(path: Path) -> Iterator[str]:
    """Every name of a plugin, of its package and of its distribution that a module holds."""
    source = path.read_text(encoding="utf8")
    texts = {node.value for node in texts_of(path)}
    for distribution, package, plugins in plugin_distributions():
        yield from (name for name in (distribution, package) if name in source)
        for plugin in plugins:
            if plugin in texts or ("-" in plugin and plugin in source):
                yield plugin


def test_core_holds_no_name_of_a_plugin() -> None:
    offenders = {name_of(path): [*named_in(path)] for path in sorted(CORE.rglob("*.py"))}
    assert {path: names for path, names in offenders.items() if names} == {}


ORDINARY_WORDS = {
    "accelerate": "the package",
    "attention": "a key of the effective configuration",
    "embedding": "a benchmark, and a kind of layer",
    "huggingface": "the folder of the hub's cache",
    "memory": "what a machine has",
    "null": "the word of YAML",
    "op": "the command",
    "operation": "the kind of a span",
    "nvml": "the library of NVIDIA, as the source of a figure",
    "text": "the kind of a value",
    "torch": "the package",
    "torchrun": "the program that has started this process",
}
"""Names of plugins in the box that core may hold as a text, and what they mean there."""


@pytest.mark.box
def test_core_holds_no_name_of_a_plugin_in_the_box() -> None:
    """Defaults of slots stand in `sample_configurations/defaults.yaml`."""
    groups = ("accel_bench", "accel_bench.formats")
    entries = [entry for group in groups for entry in metadata.entry_points(group=group)]
    names = {entry.name for entry in entries if is_ours(entry)}
    assert ORDINARY_WORDS.keys() <= names
    found = [
        f"{name_of(path)}:{node.lineno}: {node.value}"
        for path in sorted(CORE.rglob("*.py"))
        if "builtin" not in path.relative_to(CORE).parts
        for node in texts_of(path)
        if node.value in names - ORDINARY_WORDS.keys()
    ]
    assert found == []


def test_core_imports_no_plugin_in_the_box_by_name() -> None:
    """They are reached through their entry points, as a stranger's are."""
    for path in sorted(CORE.rglob("*.py")):
        if "builtin" not in path.relative_to(CORE).parts:
            found = {*imports_of(tree_of(path))}
            boxed = ("accel_bench.builtin", *boxed_packages())
            assert not [name for name in found if name.startswith(boxed)], path


def test_no_folder_in_the_box_imports_another() -> None:
    packages = boxed_packages()
    for package in packages:
        others = tuple(other for other in packages if other != package)
        folder = ROOT / "plugins" / package.removeprefix("accel_bench_").replace("_", "-")
        for path in sorted((folder / package).rglob("*.py")):
            found = {*imports_of(tree_of(path))}
            assert not [name for name in found if name.split(".")[0] in others], path


PLUGIN_CLASS = re.compile(
    r"^class \w+\((Plugin|AgentLauncher|Task)\b(?!\[OptionsT\])", re.MULTILINE
)
"""How the class of a plugin begins; a base of several is generic in its options."""


@pytest.mark.box
def test_every_plugin_in_the_box_is_an_entry_point_of_the_distribution() -> None:
    entries = metadata.entry_points(group="accel_bench")
    named = {entry.value.partition(":")[0] for entry in entries if is_ours(entry)}
    boxed = [one for name in boxed_packages() for one in (ROOT / "plugins").glob(f"*/{name}")]
    holding = {
        ".".join(path.relative_to(top).with_suffix("").parts)
        for top, room in ((CORE.parent, CORE / "builtin"), *((one.parent, one) for one in boxed))
        for path in room.rglob("*.py")
        if PLUGIN_CLASS.search(path.read_text(encoding="utf8"))
    }
    of_the_kit = {"accel_bench_testing.in_process"}  # A launcher that no scenario can name.
    assert holding - of_the_kit <= named


# What every module does, and none. What ruff knows is ruff's: rules S, and TID253.


def begins_with_its_idea(path: Path) -> bool:
    """Return whether a module has a docstring that begins as a sentence does."""
    words = ast.get_docstring(tree_of(path)) or " "
    return words[0].isupper() or words[0] in "`1234567890" or words.startswith("accel-bench")


def test_every_module_begins_with_its_idea() -> None:
    assert [name_of(path) for path in OURS if not begins_with_its_idea(path)] == []


def empty_hooks(path: Path) -> Iterator[str]:
    """Yield the hooks of a module's plugins that have a docstring and nothing else."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) == 1:
            if any("hookimpl" in ast.unparse(one) for one in node.decorator_list):
                yield f"{name_of(path)}:{node.lineno}: {node.name}"


def test_no_hook_is_a_docstring_alone() -> None:
    """An import that a hook is for looks unused, and is lost when a linter mends a module."""
    assert [one for path in OURS for one in empty_hooks(path)] == []


def test_tensors_alone_are_unpickled() -> None:
    loads = re.compile(r"\btorch\.load\((?![^()]*weights_only=True)")
    assert [name_of(path) for path in OURS if loads.search(path.read_text("utf8"))] == []


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every imported module; what only type checkers see is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imports_of(node)
