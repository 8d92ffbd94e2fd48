"""Packages between two lock files: their order, and a slow one in a local index."""

from __future__ import annotations

import json
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from accel_bench_ab.bisect_packages import Package, _packages, order_changes, read_lock
from cli.program import call, write_nulls
from packaging.requirements import Requirement

from accel_bench.errors import ScenarioError
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.scenario.settings import PythonEnvironment

PACKAGES = 63
SLOW = 41
"""Number of the package whose new version takes 5 % longer."""

WORK = """\
import importlib, time

began = time.perf_counter()
seconds = sum(importlib.import_module(f"made{number:02}").SECONDS for number in range(63))
while time.perf_counter() - began < 0.5 + seconds:
    pass
"""


def package(version: str, *needs: str) -> Package:
    """A package with what it needs."""
    return Package(version, tuple(map(Requirement, needs)))


def wheel(folder: Path, name: str, version: str, source: str, *needs: str) -> None:
    """Write the wheel of one module."""
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", source)
        file.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


def test_a_lock_file_has_pins_hashes_comments_and_markers(tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(
        "# by pip-compile\nNum_Py==2.1 \\\n    --hash=sha256:00 \\\r\n    --hash=sha256:11\n"
        "torch==2.9.0\t# via -r requirements.in\n"
        'old==1 ; python_version < "3.0"\n'
    )
    found = {name: str(one) for name, one in read_lock(path).items()}
    assert found == {"num-py": "Num_Py==2.1", "torch": "torch==2.9.0"}


def test_requirements_that_nobody_can_read_are_left_out() -> None:
    rows = [["Old", "1", ["numpy (>=1.0", "base>=1", 'extra; extra == "x"']]]
    assert dict(_packages(rows)) == {"old": package("1", "base>=1")}


@pytest.mark.parametrize("line", ["torch>=2", "torch", "-r other.txt", "torch==2.*"])
def test_what_pins_no_version_is_refused_with_its_place(line: str, tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(f"numpy==2\n{line}\n")
    with pytest.raises(ScenarioError, match=r"entry 2: .*a lock file has NAME==VERSION"):
        read_lock(path)


def test_packages_change_one_at_a_time_and_together_where_they_need_one_another() -> None:
    old = {
        "free": package("1"),
        "torch": package("1", "triton==1"),
        "triton": package("1"),
        "user": package("1", "base>=1"),
        "base": package("1"),
    }
    new = {
        "free": package("2"),
        "torch": package("2", "triton==2"),
        "triton": package("2"),
        "user": package("2", "base>=2"),
        "base": package("2"),
    }
    groups = order_changes(["torch", "triton", "user", "base", "free"], old, new)
    assert groups == [["base"], ["user"], ["free"], ["torch", "triton"]]


def test_added_and_removed_packages_are_changes_in_an_order_that_is_allowed() -> None:
    old = {"app": package("1", "left"), "left": package("1")}
    new = {"app": package("2", "right"), "right": package("1")}
    groups = order_changes(["left", "app", "right"], old, new)
    assert groups == [["right"], ["app"], ["left"]]


def test_a_need_that_an_end_does_not_meet_itself_decides_nothing() -> None:
    lacks = {"own": package("1", "unpinned")}
    old = {**lacks, "a": package("1", "b==1"), "b": package("1")}
    new = {**lacks, "a": package("2", "b==9"), "b": package("2")}
    assert order_changes(["a", "b"], old, new) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [("-e .", "--no-emit-project"), ("numpy==3", "numpy==2 and numpy==3 are both pinned")],
)
def test_a_folder_and_two_versions_are_refused(lines: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(f"numpy==2\n{lines}\n")
    with pytest.raises(ScenarioError, match=reason):
        read_lock(path)


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two lock files as pip-compile writes them, and the index of their packages.

    One pins a pydantic that accel-bench itself refuses.
    """
    index = tmp_path / "index"
    index.mkdir()
    for number in (1, 2):
        wheel(index, "made", f"{number}.0", f"VALUE = {number}\n", "pydantic<2")
        wheel(index, "pydantic", f"1.{number}", "")
        lines = []
        for pin in (f"made=={number}.0", f"pydantic==1.{number}"):
            built = index / f"{pin.replace('==', '-')}-py3-none-any.whl"
            lines.append(f"{pin} \\\n    --hash=sha256:{sha256(built.read_bytes()).hexdigest()}")
        (tmp_path / f"{number}.lock").write_text("# by pip-compile\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return "1.lock..2.lock"


PRINTS = """\
import made
from importlib.metadata import distributions
print(f"value={made.VALUE}", *sorted(one.name for one in distributions()))
"""


@pytest.mark.release
def test_a_command_runs_in_the_environments_of_two_lock_files_and_nothing_else(
    tmp_path: Path, locks: str
) -> None:
    (tmp_path / "work.py").write_text(PRINTS)
    figures = ["--metric", r"value=value=(\d) made pydantic$"]
    words = ["--by", "wall", "--rounds", "1", "--format", "json", *figures]
    done = call("ab", "--env", locks, *words, "--", "python", "work.py", folder=tmp_path)
    assert done.code == 0, done.err
    found = {
        row["stack"]: {one["name"]: one["value"] for one in row["metrics"]}["value"]
        for row in json.loads(done.out)["experiments"]
    }
    assert found == {"1": 1.0, "2": 2.0}


def test_a_changed_script_is_another_search(tmp_path: Path, locks: str) -> None:
    script = tmp_path / "work.py"
    words = ["--by", "wall", "--max-runs", "2", "--format", "json"]

    def bisect() -> tuple[int, bool]:
        done = call("bisect", locks, *words, "--", "python", "work.py", folder=tmp_path)
        return json.loads(done.out)["runs"], "goes on after 2 runs" in done.err

    script.write_text(PRINTS)
    assert bisect() == (2, False)
    assert bisect() == (2, True)
    script.write_text(f"{PRINTS}print('more')")
    assert bisect() == (2, False)


@pytest.mark.release
def test_a_package_that_is_5_percent_slower_is_found_among_64_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for number in range(PACKAGES):
        for version in ("1.0", "2.0"):
            slow = number == SLOW and version == "2.0"
            wheel(index, f"made{number:02}", version, f"SECONDS = {0.025 * slow}\n")
    for name, version in (("old", "1.0"), ("new", "2.0")):
        pins = [f"made{number:02}=={version}" for number in range(PACKAGES)]
        (tmp_path / f"{name}.txt").write_text("\n".join(pins))
    (tmp_path / "work.py").write_text(WORK)
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    words = ["--by", "wall", "--results", str(tmp_path / "results"), "--format", "json"]
    done = call("bisect", "old.txt..new.txt", *words, "--", "python", "work.py", folder=tmp_path)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["answer"] == "culprit", report["conclusion"]
    assert report["first_bad"] == f"{SLOW + 1}-made{SLOW:02}"
    assert f"made{SLOW:02} 1.0 -> 2.0" in report["conclusion"]
    assert report["versions"] == 64
    assert report["probes"] <= 8


def test_a_scenario_runs_in_the_environment_of_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path, "made", "1.0", "")
    wheel(tmp_path, "made", "2.0", "")
    for version in ("1.0", "2.0"):
        (tmp_path / f"{version}.txt").write_text(f"made=={version}\n")
    interpreter = pytest.importorskip("accel_bench_environments.interpreter")
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    asked = []

    def find_interpreter(name: str, settings: PythonEnvironment, *_: object) -> Interpreter:
        asked.append((name, settings.requirements))
        found: Interpreter = interpreter.read_interpreter(sys.executable)
        return found

    # Here pip would install accel-bench and torch too, from an index.
    monkeypatch.setattr("accel_bench_environments.build.find_interpreter", find_interpreter)
    scenario = write_nulls(tmp_path, stacks="{baseline: [], other: []}")
    words = ["--rounds", "5", "--results", str(tmp_path / "results"), "--format", "json"]
    done = call("bisect", "1.0.txt..2.0.txt", str(scenario), "--stack", "other", *words,
                folder=tmp_path)  # fmt: skip
    report = json.loads(done.out)
    assert report["answer"] in ("none", "inconclusive")
    assert report["runs"] == 10
    assert {*asked} == {("old", ("made==1.0",)), ("1-made", ("made==2.0",))}
