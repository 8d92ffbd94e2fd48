"""The wheels hold what is needed: installed alone in an empty folder, the program finds its
samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml")))

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in SOURCES:
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    return folder


@pytest.fixture(scope="module")
def site(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which all wheels are installed, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    files = sorted(str(path) for path in wheels.glob("*.whl"))
    pip("install", "--no-deps", "--no-index", "--target", str(folder), *files)
    return folder


def pip(*arguments: str) -> None:
    """Run pip without the network."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def call(site: Path, folder: Path, *arguments: str) -> str:
    """Run the installed program in a folder; dependencies come from this environment."""
    # The editable install's path comes after PYTHONPATH, so the wheels win.
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "accel_bench", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(printed: str) -> list[str]:
    """Names in a list printed as JSON."""
    return [row["name"] for row in json.loads(printed)]


def test_the_program_runs_from_the_wheel(site: Path, tmp_path: Path) -> None:
    program = "import accel_bench; print(accel_bench.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(site)


@pytest.mark.parametrize("kind", ["scenarios", "stacks", "models", "hardware"])
def test_the_samples_are_inside(kind: str, site: Path, tmp_path: Path) -> None:
    found = names(call(site, tmp_path, kind, "list", "--format", "json"))
    shipped = {path.stem for path in (ROOT / "sample_configurations" / kind).glob("*.yaml")}
    brought = {
        path.stem
        for path in (ROOT / "plugins").glob(f"*/accel_bench_*/sample_configurations/{kind}/*.yaml")
    }
    assert set(found) == shipped | brought


def test_the_plugins_of_all_wheels_are_listed(site: Path, tmp_path: Path) -> None:
    rows = json.loads(call(site, tmp_path, "plugins", "--format", "json"))
    ours = {row["name"]: row for row in rows}
    assert {"torch-compile", "example", "huggingface", "null"} <= set(ours)
    assert all(row["duplicates"] == [] for row in rows)
    # What quantizes or brings kernels has libraries of its own, in another environment.
    unmet = {row["name"] for row in rows if row["unmet"]}
    assert unmet <= {"autogptq", "bitsandbytes", "fused-kernels", "liger", "torchao"}


def test_the_quickstart_is_planned_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    found = json.loads(call(site, tmp_path, "run", "--dry-run", "--format", "json"))
    assert [row["stack"] for row in found["experiments"]][:2] == ["baseline", "torch-compile"]
    assert list(tmp_path.iterdir()) == []


def test_a_version_from_a_wheel_carries_no_commit(site: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "nulls.yaml"
    use = "{use: null}"
    scenario.write_text(
        f"model: {use}\ndata: {use}\noptimizer: {use}\nengine: {use}\n"
        "measure: {warmup: 1, steps: 2, rounds: 1}\n"
    )
    found = json.loads(call(site, tmp_path, "run", str(scenario), "-q", "--format", "json"))
    versions = {plugin["version"] for plugin in found["experiments"][0]["plugins"]}
    assert versions == {"0.1.0"}


def test_the_wheels_hold_code_samples_and_license_and_no_tests(wheels: Path) -> None:
    files = sorted(wheels.glob("*.whl"))
    assert len(files) == len(SOURCES)
    for file in files:
        inside = zipfile.ZipFile(file).namelist()
        assert not [name for name in inside if "tests/" in name or name.endswith(".pyc")]
        packages = {name.split("/")[0] for name in inside if ".dist-info" not in name}
        assert len(packages) == 1
        assert next(iter(packages)).startswith("accel_bench")
    core = zipfile.ZipFile(next(path for path in files if path.name.startswith("accel_bench-")))
    assert "accel_bench/sample_configurations/scenarios/quickstart.yaml" in core.namelist()
    assert "accel_bench/sample_configurations/extras.yaml" in core.namelist()
    assert [name for name in core.namelist() if name.endswith("licenses/LICENSE")]
