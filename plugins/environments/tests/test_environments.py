"""Python environments as an axis: found or built, swept or chosen, refused with the way out."""

from __future__ import annotations

import json
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accel_bench_environments import interpreter
from accel_bench_environments.build import (
    build_environment,
    environment_folder,
    installed_from,
    python_of,
)
from faults.program import null_scenario, write_scenario
from store.store_factory import make_result

from accel_bench.analysis.checks.comparability import comparability
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.settings import PythonEnvironment
from accel_bench.store.database import open_store
from accel_bench.testing import run_program

ALLOWED = PlanRequest(allow_environment=True)


def make_environment(folder: Path, version: str) -> Path:
    """Lay out an environment with a distribution of this version beside everything of this one."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    info = packages / f"dependency-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: dependency\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf8")
    here = [sysconfig.get_path("purelib"), *(one for one in sys.path if "site-packages" in one)]
    lines = [f"import site; site.addsitedir({one!r})\n" for one in dict.fromkeys(here)]
    (packages / "here.pth").write_text("".join(lines), encoding="utf8")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two environments with different versions of a small dependency."""
    root = tmp_path_factory.mktemp("environments")
    return {name: make_environment(root / name, f"{name[1:]}.0") for name in ("v1", "v2")}


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    """Plan a scenario with environments."""

    def make(environments: Any, request: PlanRequest = ALLOWED, **changes: Any) -> Plan:
        stacks = changes.pop("stacks", {"baseline": []})
        scenario = null_scenario(stacks, environments=environments, **changes)
        draft = read_draft(write_scenario(tmp_path / "scenario.yaml", scenario))
        return make_plan(draft, read_machine().model_copy(update={"gpus": ()}), request)

    return make


def test_two_environments_give_two_rows_that_ran_in_them(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    scenario = null_scenario(
        {"baseline": []},
        environments={name: {"python": str(folder)} for name, folder in folders.items()},
        measure={"warmup": 1, "steps": 2, "rounds": 1},
    )
    path = write_scenario(tmp_path / "scenario.yaml", scenario)
    results = tmp_path / "results"
    arguments = ("--allow-env", "--format", "json", "--results", str(results))
    done = run_program("run", str(path), *arguments)
    assert done.returncode == 0, done.stderr
    assert [row["sweep"] for row in json.loads(done.stdout)["experiments"]] == [
        {"resources.environment": "v1"},
        {"resources.environment": "v2"},
    ]
    with open_store(results, write=False) as store:
        runs = store.results()
    facts: list[Any] = [run.experiment.identity["environment"] for run in runs]
    assert [one["distributions"]["dependency"] for one in facts] == ["1.0", "2.0"]
    for run, folder in zip(runs, folders.values(), strict=True):
        assert run.status.completed, run.reasons
        kept = results / run.folder
        assert f'"{folder}/bin/python"' in (kept / "job.json").read_text()
        assert "dependency==" in (kept / "packages.txt").read_text()
    # The command beside each run repeats it, in the same environment.
    again = read_draft(results / runs[1].folder / "scenario.yaml")
    (planned,) = make_plan(again, read_machine(), ALLOWED).planned
    found: Any = planned.experiment.identity["environment"]
    assert found["distributions"]["dependency"] == "2.0"


def test_a_stack_chooses_an_environment_and_may_be_compared(
    plan_of: Any, folders: dict[str, Path]
) -> None:
    plan = plan_of(
        {name: {"python": str(folder)} for name, folder in folders.items()},
        resources={"environment": "v1"},
        stacks={"baseline": [], "newer": {"set": {"resources.environment": "v2"}}},
    )
    first, second = (one.experiment for one in plan.planned)
    assert (first.sweep, second.sweep) == ({}, {})
    assert first.id != second.id
    key = "environment.distributions.dependency"
    assert key in declared_differences(first, second)


def declared_differences(first: Any, second: Any) -> list[str]:
    """Return the keys that stacks declare; nothing else may differ."""
    made = [make_result().model_copy(update={"experiment": one}) for one in (first, second)]
    found = comparability(made[:1], made[1:])
    assert found.comparable, found.refusal
    return [one.key for one in found.declared]


@pytest.mark.parametrize(
    ("environments", "request_", "words"),
    [
        (
            {"a": {"python": sys.executable}},
            PlanRequest(),
            ("runs code of its", "--allow-env"),
        ),
        ({"a": {"python": "/nowhere/python"}}, ALLOWED, ("a: /nowhere/python cannot be run",)),
        ({"a": {}}, ALLOWED, ("give either `python`, a path, or `requirements`",)),
        ({"a": {"python": "x", "index": "cpu"}}, ALLOWED, ("`index` belongs to `requirements`",)),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(
    plan_of: Any, environments: Any, request_: PlanRequest, words: tuple[str, ...]
) -> None:
    with pytest.raises(ScenarioError) as refused:
        plan_of(environments, request_)
    assert "scenario.yaml:" in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_an_unknown_environment_is_refused(plan_of: Any, folders: dict[str, Path]) -> None:
    with pytest.raises(ScenarioError, match=r"no environment is called 'v3'; known: v1"):
        plan_of({"v1": {"python": str(folders["v1"])}}, resources={"environment": "v3"})


def test_an_environment_without_accel_bench_says_how_to_install_it(
    plan_of: Any, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    with pytest.raises(
        ScenarioError, match=r"has no usable accel-bench .* pip install accel-bench"
    ):
        plan_of({"bare": {"python": str(tmp_path / "bare")}})


def test_jobs_of_another_contract_are_refused(
    plan_of: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "SCHEMA_VERSION", 99)
    with pytest.raises(ScenarioError, match=r"reads jobs of schema 2, this .* writes schema 99"):
        plan_of({"v1": {"python": str(folders["v1"])}})


def test_a_plan_alone_builds_nothing(plan_of: Any) -> None:
    request = PlanRequest(allow_environment=True, build_environments=False)
    (planned,) = plan_of({"new": {"requirements": ["dependency==3"]}}, request).planned
    assert planned.skipped == ("the environment 'new' is not built yet; a run builds it",)


def test_an_environment_is_built_once_for_its_content(tmp_path: Path) -> None:
    requirement = f"dependency @ {make_wheel(tmp_path).as_uri()}"
    wanted = PythonEnvironment(requirements=(requirement,))
    folder = environment_folder(wanted, [])
    assert folder != environment_folder(wanted.model_copy(update={"index": "cpu"}), [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", "https://example.org/simple")
        assert folder != environment_folder(wanted, [])
    nowhere = "dependency @ file:///nowhere-1.0-py3-none-any.whl"
    broken = PythonEnvironment(requirements=(nowhere,))
    with pytest.raises(ScenarioError, match=r"cannot be built:\n(?s:.*)nowhere"):
        build_environment(broken, [])
    assert python_of(environment_folder(broken, [])) is None
    started: list[str] = []
    for _ in range(2):
        python = build_environment(wanted, [], lambda: started.append("built"))
    assert started == ["built"]
    assert (python, list(folder.glob("lib/*/site-packages/dependency.py"))) != (None, [])


def make_wheel(folder: Path) -> Path:
    """Write a wheel of one module: no index is asked for it."""
    path = folder / "dependency-3.0-py3-none-any.whl"
    info = "dependency-3.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("dependency.py", "")
        about = "Metadata-Version: 2.1\nName: dependency\nVersion: 3.0\n"
        wheel.writestr(f"{info}/METADATA", about)
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")
    return path


def test_own_distributions_are_installed_as_they_are_here() -> None:
    editable, where = installed_from("accel-bench")
    assert (editable, where[:7]) == ("-e", "file://")
    assert installed_from("pluggy") == [f"pluggy=={metadata.version('pluggy')}"]


@pytest.mark.parametrize(
    ("record", "source"),
    [
        (
            {"url": "https://x.org/a", "vcs_info": {"vcs": "git", "commit_id": "ab1"}},
            "name @ git+https://x.org/a@ab1",
        ),
        (
            {
                "url": "https://x.org/a",
                "subdirectory": "b",
                "vcs_info": {"vcs": "git", "commit_id": "c"},
            },
            "name @ git+https://x.org/a@c#subdirectory=b",
        ),
        (
            {"url": "file:///a.whl", "archive_info": {"hashes": {"sha256": "12"}}},
            "name @ file:///a.whl#sha256=12",
        ),
    ],
)
def test_a_distribution_is_installed_from_where_it_came_from(
    record: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(version="1", read_text=lambda _: json.dumps(record))
    monkeypatch.setattr(metadata, "distribution", lambda _: found)
    assert installed_from("name") == [source]


def test_an_interpreter_is_found_beside_the_working_folder(
    plan_of: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders["v1"])
    (planned,) = plan_of({"here": {"python": "bin/python"}}).planned
    assert planned.command[0] == str(folders["v1"] / "bin" / "python")
    few = read_machine().model_copy(update={"cores": 77})
    assert planned.machine(few).cores == 77
