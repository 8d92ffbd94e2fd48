"""Core stands alone; each folder of the box works beside it alone, and nothing misses one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from alone import KIT, ROOT, TRAINING, boxed_folders, make_environment, write_metadata
from cli.program import Done, write_nulls

FOLDERS = boxed_folders()

NULLS = {
    "stacks": "{baseline: [], other: {use: [], set: {engine.step_seconds: 0.01}}}",
    "measure": "{warmup: 1, steps: 2, rounds: 5}",
}
"""What makes a stack slower than another one, for certain."""

GATE = ("--fail-if-slower", "1%")


class Core(NamedTuple):
    """An environment that has core, and no folder of `plugins/`."""

    python: Path

    folder: Path
    """What programs run in: it has results."""

    def start(self, *arguments: str, asked: str = "") -> Done:
        """Run Python with these arguments; `asked` is what stands on stdin."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env={**os.environ, "GIT_DIR": os.devnull},
            input=asked,
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def call(self, *arguments: str) -> Done:
        """Run the program."""
        return self.start("-m", "accel_bench", *arguments)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """That environment, with results of two stacks."""
    folder = tmp_path_factory.mktemp("core")
    core = Core(make_environment(folder / "environment"), folder)
    write_nulls(folder, **NULLS)
    done = core.call("run", "nulls.yaml", *GATE)
    assert (done.code, "slower" in done.out) == (4, True), (done.out, done.err)
    return core


def test_core_alone_measures_judges_stores_compares_and_writes_pages(core: Core) -> None:
    listed = core.start("-c", STORED)
    assert json.loads(listed.out) == ["ok"] * 10, listed.err
    for form, begins in (("markdown", "## baseline and"), ("html", "<!doctype html>")):
        page = core.call("compare", "baseline", "other", "--format", form)
        assert page.code == 0 and page.out.startswith(begins), (page.out, page.err)
        assert "(5 rounds): slower" in page.out


def test_core_alone_says_that_a_gate_is_open(core: Core) -> None:
    done = core.call("run", "nulls.yaml", "--rounds", "1", "--results", "elsewhere", *GATE)
    assert done.code == 5, (done.out, done.err)


def test_core_alone_says_what_brings_the_kit(core: Core) -> None:
    done = core.start("-c", "from accel_bench.testing import check_plugin")
    last = done.err.strip().rpartition("\n")[2]
    assert done.code == 1 and last.startswith("ModuleNotFoundError: accel_bench.testing: the kit")
    assert "`pip install accel-bench` brings it" in last


def test_core_alone_says_what_brings_accelerate(core: Core) -> None:
    done = core.start("-c", "from accel_bench import accelerate")
    last = done.err.strip().rpartition("\n")[2]
    assert done.code == 1 and "nothing that is installed brings the function 'accelerate'" in last
    assert last.endswith("`pip install accel-bench` brings the program's own")


STORED = """
import json
import accel_bench
runs = accel_bench.open_store("accel_bench_results").select()
print(json.dumps([run.status.value for run in runs]))
"""

EVERY = """
import contextlib, io, json, sys
from importlib import metadata
from pathlib import Path

from accel_bench.cli.commands import find_commands
from accel_bench.cli.main import main
from accel_bench.plugins.registry import installed


def call(arguments):
    out = io.StringIO()
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as stop:
            return [stop.code or 0, out.getvalue()]
    return [0, out.getvalue()]


def load(entry):
    try:
        entry.load()
    except Exception as error:
        return f"{entry.group}: {entry.name}: {type(error).__name__}: {error}"


core, found = sys.path[:], {}
for name, site, folders, packages, calls, alone in json.load(sys.stdin):
    for module in [one for one in sys.modules if one.startswith("accel_bench_")]:
        if module.partition(".")[0] not in packages:
            del sys.modules[module]
    sys.path[:] = [site, *folders, *core]
    installed.cache_clear()
    entries = metadata.distribution("accel-bench").entry_points
    theirs = [one for one in entries if one.module.partition(".")[0] in packages]
    own = [one.name for one in theirs if one.group == "accel_bench.commands"]
    found[name] = {
        "broken": [*filter(None, map(load, theirs))] if alone else [],
        "entries": len(theirs),
        "commands": [*find_commands()],
        "helps": {name: call([*name.split("."), "--help"]) for name in own if alone},
        "calls": {" ".join(one): call(one) for one in calls},
    }
print(json.dumps(found))
"""
"""Tries sets of folders, one after the other: starting a process for each would take longer."""

WORKS = {
    "advise": ["catalog", "prices"],
    "ci": ["history", "stack = other"],
    "doctor": ["doctor", "--no-noise"],
    "interop": ["results", "export", "--format", "mllog"],
    "op": ["op", "show", "rms_norm"],
    "profile": ["profile", "--nsys"],
    "report": ["report", "--with-names", "--markdown", "-"],
    "search": ["fit", "nulls.yaml", "--stack", "other", "--dry-run"],
    "share": ["bundle", "list"],
}
"""Calls of folders on the stored results, or without any; of every command there is its help."""

USUAL = [["compare", "baseline", "other"], ["run", "nulls.yaml", "--dry-run"]]
"""Calls that ask all that is installed for its sections, and for what a plan needs."""


def tried(core: Core, sets: dict[str, list[str]], alone: bool) -> dict[str, Any]:
    """Return what happens with each set of folders; `alone` calls what the folder brings, too."""
    asked = []
    for name, folders in sets.items():
        site = core.folder / f"{name}-{alone}"
        site.mkdir()
        write_metadata(site, folders)
        paths = [str(ROOT / "plugins" / folder) for folder in folders]
        own = [WORKS[name]] if alone and name in WORKS else []
        packages = [FOLDERS[one] for one in folders]
        asked.append([name, str(site), paths, packages, [*own, *USUAL], alone])
    done = core.start("-c", EVERY, asked=json.dumps(asked))
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.fixture(scope="module")
def beside(core: Core) -> dict[str, Any]:
    """What happens with each folder beside core, and no other one."""
    return tried(core, {folder: [folder] for folder in FOLDERS}, alone=True)


@pytest.fixture(scope="module")
def without(core: Core) -> dict[str, Any]:
    """What happens where each folder is taken away, with its entry points."""
    sets = {one: [folder for folder in FOLDERS if folder != one] for one in FOLDERS}
    return tried(core, sets, alone=False)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_works_beside_core_alone(folder: str, beside: dict[str, Any]) -> None:
    found = beside[folder]
    assert found["entries"] and found["broken"] == []
    done = {**found["helps"], **found["calls"]}
    assert {call: said for call, said in done.items() if said[0] or says_broken(said[1])} == {}


def says_broken(text: str) -> bool:
    """Return whether an output says of an entry point that it is broken, in a line or two."""
    return "is broken: " in " ".join(text.split())


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_misses_a_folder_that_is_taken_away(
    folder: str, beside: dict[str, Any], without: dict[str, Any]
) -> None:
    found = without[folder]
    assert {call: said for call, said in found["calls"].items() if said[0]} == {}
    others = {name for other in FOLDERS if other != folder for name in beside[other]["commands"]}
    assert {*found["commands"]} == others


def test_tests_of_core_and_of_other_folders_import_no_folder() -> None:
    """`benchmarks` measures all of them, and its tests do; tests take parts of the kit by `kit`.

    They train a model with the folders of `TRAINING`.
    """
    folders = {package: ROOT / "plugins" / folder for folder, package in FOLDERS.items()}
    measuring, kit = ROOT / "tests" / "benchmarks", ROOT / "tests" / "kit.py"
    training = {FOLDERS[folder] for folder in TRAINING}
    tests = {*(ROOT / "tests").rglob("*.py")}
    tests.update(*((root / "tests").rglob("*.py") for root in folders.values()))
    found = [
        f"{path.relative_to(ROOT)}: {package}"
        for path in sorted(tests)
        for package in imported_by(path) & folders.keys() - training
        if not {folders[package], measuring} & {*path.parents}
        and (path, package) != (kit, FOLDERS[KIT])
    ]
    assert found == []


def imported_by(path: Path) -> set[str]:
    """Packages that a module imports, anywhere in it."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}
