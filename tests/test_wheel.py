"""The wheels hold what is needed: installed alone in an empty folder, the program finds its
samples; and an extra brings its plugin, with libraries that the constraints pin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from accel_bench.plugins.shipped import extras
from accel_bench.testing import run_program

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml")))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every distribution.

    Built as pip has them built, without the three processes that it starts for each.
    """
    folder = tmp_path_factory.mktemp("wheels")
    for source in SOURCES:
        assert [*WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])]
    return folder


@pytest.fixture(scope="module")
def site(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which all wheels are installed, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    files = sorted(str(path) for path in wheels.glob("*.whl"))
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", str(folder), *files)
    return folder


def pip(*arguments: str) -> None:
    """Run pip without the network."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def call(site: Path, folder: Path, *arguments: str) -> str:
    """Run the installed program in a folder; dependencies come from this environment."""
    # The editable install's path comes after PYTHONPATH, so the wheels win.
    done = run_program(*arguments, folder=folder, environment={"PYTHONPATH": str(site)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(printed: str) -> list[str]:
    """Names in a list printed as JSON."""
    return [row["name"] for row in json.loads(printed)]


def test_the_program_runs_from_the_wheel(site: Path, tmp_path: Path) -> None:
    program = (
        "import accel_bench; from accel_bench.testing import run_plugin; "
        "print(accel_bench.__file__, run_plugin.__code__.co_filename, sep='\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    files = done.stdout.splitlines()
    assert [Path(file).is_relative_to(site) for file in files] == [True, True]


def test_every_wheel_says_that_it_is_typed(wheels: Path) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        names = zipfile.ZipFile(wheel).namelist()
        packages = [wheel.name.partition("-")[0]]
        # Types of `accel_bench.testing` stand there.
        packages += ["accel_bench_testing"] if packages == ["accel_bench"] else []
        assert {f"{package}/py.typed" for package in packages} <= {*names}, wheel.name


@pytest.mark.parametrize(
    ("kind", "noun"),
    [
        ("scenarios", "scenarios"),
        ("stacks", "catalog stacks"),
        ("models", "catalog models"),
        ("hardware", "catalog devices"),
    ],
)
def test_the_samples_are_inside(kind: str, noun: str, site: Path, tmp_path: Path) -> None:
    found = names(call(site, tmp_path, *noun.split(), "list", "--format", "json"))
    shipped = {path.stem for path in (ROOT / "sample_configurations" / kind).glob("*.yaml")}
    brought = {
        path.stem
        for path in (ROOT / "plugins").glob(f"*/accel_bench_*/sample_configurations/{kind}/*.yaml")
    }
    assert set(found) == shipped | brought


def test_topics_of_help_are_inside_and_no_extra_is_a_folder(site: Path, tmp_path: Path) -> None:
    topics = {path.stem for path in (ROOT / "sample_configurations" / "help").glob("*.txt")}
    assert {*re.findall(r"^  ([a-z-]+)  ", call(site, tmp_path, "help"), re.M)} >= topics
    assert "./plugins/" not in call(site, tmp_path, "plugins") + call(
        site, tmp_path, "catalog", "stacks"
    )


def test_the_plugins_of_all_wheels_are_listed(site: Path, tmp_path: Path) -> None:
    rows = json.loads(call(site, tmp_path, "plugins", "--format", "json"))
    ours = {row["name"]: row for row in rows}
    assert {"torch-compile", "example", "huggingface", "null"} <= set(ours)
    assert all(row["duplicates"] == [] for row in rows)
    # What quantizes or brings kernels has libraries of its own, in another environment.
    unmet = {row["name"] for row in rows if row["unmet"]}
    assert unmet <= {
        "autogptq",
        "bitsandbytes",
        "deepspeed",
        "fused-kernels",
        "liger",
        "mlflow",
        "torchao",
        "wandb",
    }


def test_the_quickstart_is_planned_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    found = json.loads(call(site, tmp_path, "run", "--dry-run", "--format", "json"))
    assert [row["stack"] for row in found["experiments"]][:2] == ["baseline", "padding-free"]
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
        assert all(name.startswith("accel_bench") for name in packages)
        in_the_box = len(packages) - 1
        assert bool(in_the_box) == file.name.startswith("accel_bench-")
    core = zipfile.ZipFile(next(path for path in files if path.name.startswith("accel_bench-")))
    assert "accel_bench/sample_configurations/scenarios/quickstart.yaml" in core.namelist()
    assert "accel_bench/sample_configurations/shipped.yaml" in core.namelist()
    assert [name for name in core.namelist() if name.endswith("licenses/LICENSE")]


# Extras: what `pip install 'accel-bench[gptq]'` would bring, and under `release` what it brings.


def requirements(wheels: Path) -> dict[str, list[Requirement]]:
    """Return what each wheel requires, by the name of its distribution."""
    found = {}
    for file in wheels.glob("*.whl"):
        with zipfile.ZipFile(file) as wheel:
            (path,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = message_from_bytes(wheel.read(path))
        required = metadata.get_all("Requires-Dist") or []
        found[canonicalize_name(metadata["Name"])] = [Requirement(line) for line in required]
    return found


def brought(
    wheels: dict[str, list[Requirement]], name: str, chosen: frozenset[str]
) -> Iterator[Requirement]:
    """Yield what installing a distribution of ours with these extras brings, itself included."""
    for requirement in wheels[name]:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": one}) for one in chosen or {""}):
            yield requirement
            inner = canonicalize_name(requirement.name)
            if inner in wheels:
                yield from brought(wheels, inner, frozenset(requirement.extras))


def constraints() -> dict[str, str]:
    """Return the version that `constraints.txt` pins each library to."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    pins = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


@pytest.mark.parametrize(
    "extra", ["all", "pandas", "parquet", *sorted({one.extra for one in extras().values()})]
)
def test_what_an_extra_brings_is_pinned_to_versions_that_it_allows(
    extra: str, wheels: Path
) -> None:
    ours, pins = requirements(wheels), constraints()
    needed = [*brought(ours, "accel-bench", frozenset({extra}))]
    assert needed
    libraries = [one for one in needed if canonicalize_name(one.name) not in ours]
    assert {one.name for one in libraries if canonicalize_name(one.name) not in pins} == set()
    wrong = [
        str(one) for one in libraries if pins[canonicalize_name(one.name)] not in one.specifier
    ]
    assert wrong == []


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_the_extra_brings_the_plugin_with_all_that_it_needs(wheels: Path, tmp_path: Path) -> None:
    """As a user types it: from an index and our wheels, into an empty environment."""
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder = tmp_path / "venv" / "bin"
    install = (bin_folder / "python", "-m", "pip", "install", "--disable-pip-version-check")
    pinned = ("-c", ROOT / "constraints.txt")
    run(*install, *pinned, "--no-compile", "--find-links", wheels, "accel-bench[gptq]")
    listed = json.loads(run(bin_folder / "accel-bench", "plugins", "--format", "json"))
    plugin = {row["name"]: row for row in listed}["autogptq"]
    assert plugin["distribution"] == "accel-bench-gptq"
    assert plugin["unmet"] == []
    checked = json.loads(
        run(bin_folder / "accel-bench", "plugins", "check", "autogptq", "--format", "json")
    )
    assert checked["usable"], checked
    planned = json.loads(
        run(bin_folder / "accel-bench", "run", "--dry-run", "--format", "json", folder=tmp_path)
    )
    skipped = {row["stack"]: " ".join(row["reasons"]) for row in planned["experiments"]}
    for extra in ("padding-free", "compile"):
        (reason,) = [text for text in skipped.values() if f"accel-bench[{extra}]" in text]
        assert "is not installed" in reason
    few = ("--rounds", "1", "--set", "measure.steps=2", "--set", "data.limit_bytes=100000")
    measured = json.loads(
        run(
            *(bin_folder / "accel-bench", "run", "--plugin", "autogptq", *few),
            *("--quiet", "--format", "json"),
            folder=tmp_path,
        )
    )
    statuses = {row["stack"]: row["status"] for row in measured["experiments"]}
    assert set(statuses) == {"baseline", "autogptq"}
    assert set(statuses.values()) <= {"ok", "degraded"}


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run a program that must succeed, with nothing of this environment in sight."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ACCEL"))}
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
