"""The script for a GPU on a machine that has none of our distributions: what it sets up there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SET_UP = """
import subprocess, sys
from pathlib import Path
from benchmarks import gpu_setup
assert not gpu_setup.is_installed("accel-bench")
gpu_setup.set_up(Path("no-wheels"), Path(sys.argv[1]))
sys.exit(subprocess.run([sys.executable, "-S", "-c", sys.argv[2]]).returncode)
"""

LIST = """
from accel_bench.documents.presets import find_presets
print(*find_presets("scenarios"))
"""


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """What is installed here, but for this project: a machine that the script finds."""
    folder = tmp_path / "others"
    folder.mkdir()
    for place in {path for path in sys.path if path.endswith("-packages")}:
        for found in Path(place).iterdir():
            ours = found.name.replace("-", "_").lstrip("_").startswith("accel_bench")
            if not ours and found.suffix != ".pth" and not (folder / found.name).exists():
                (folder / found.name).symlink_to(found)
    return folder


def test_scenarios_of_plugins_are_found_where_nothing_is_installed(
    others: Path, tmp_path: Path
) -> None:
    standard = sysconfig.get_path("stdlib")
    done = subprocess.run(
        [sys.executable, "-S", "-c", SET_UP, str(tmp_path / "site"), LIST],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(others), standard])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"quickstart", "single-gpu-full", "padding-free", "quantized-peft", "torchao-cpu"} <= {
        *done.stdout.split()
    }


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python in which nothing is installed, not even pip."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without results of earlier calls, to which rounds would be added."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    for name in ("core", "plugins", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_a_plugin_s_stack_runs_where_nothing_is_installed_and_only_results_are_left(
    bare_python: Path, checkout: Path, others: Path, tmp_path: Path
) -> None:
    temporary, output = tmp_path / "temporary", tmp_path / "output"
    temporary.mkdir()
    work = ("padding-free", "--only", "padding-free", "--set", "sweep.train.micro_batch_size=[2]")
    few = ("model.dtype=float32", "measure.phase_steps=0", "measure.steps=1")
    settings = [word for one in few for word in ("--set", one)]
    here = ("--device", "cpu", "--small", "--output", str(output))
    done = subprocess.run(
        [str(bare_python), "-m", "benchmarks.gpu", *work, *settings, *here],
        env={**os.environ, "PYTHONPATH": str(others), "TMPDIR": str(temporary)},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (output / "log.txt").read_text()
    document = json.loads((output / "padding-free.json").read_text())
    found = {one["stack"]: one["status"] for one in document["experiments"]}
    assert set(found) == {"padded", "padding-free"}
    assert set(found.values()) <= {"ok", "degraded"}
    assert list(temporary.glob("accel-bench*")) == [], "nothing that is ours"


def test_settings_and_rounds_reach_the_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu import parse
    from benchmarks.gpu_sections import on_request

    asked = "gpu single-gpu-full --rounds 1 --set measure.steps=5 -s sweep.a=[8] --only compiled"
    monkeypatch.setattr("sys.argv", asked.split())
    found = {one.name: one.command for one in on_request(parse(), tmp_path)}
    command = found["single-gpu-full"]
    line = " ".join(command)
    for part in ("--rounds 1", "--set measure.steps=5", "--set sweep.a=[8]", "--only compiled"):
        assert part in line
