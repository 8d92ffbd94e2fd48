"""The script for a GPU on a machine that has none of our distributions: what it sets up there."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

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


def test_no_trace_costs_a_round_its_place_in_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some machines hand back files of 16 MiB alone: traces and snapshots are packed apart."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import gpu

    kept, output = tmp_path / "kept", tmp_path / "output"
    monkeypatch.setattr(gpu, "KEPT", kept)
    rounds, large = "works/accel_bench.sqlite", "profile/runs/a/1/profile"
    traces = (f"{large}/rank0.1.pt.trace.json.gz", f"{large}/rank0/memory_snapshot.pickle")
    for name in (rounds, *traces, "works/cache/kernel.so"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_bytes(os.urandom(2**20 if name in traces else 2**10))
    output.mkdir()
    (output / "summary.json").write_text("{}")
    for _ in range(2):  # The second call does not pack what the first has written.
        gpu.pack(output)
    found = {}
    for archive in ("everything.tar.gz", "traces.tar.gz"):
        with tarfile.open(output / archive) as packed:
            found[archive] = set(packed.getnames())
    assert found == {
        "everything.tar.gz": {"documents/summary.json", f"kept/{rounds}"},
        "traces.tar.gz": {f"kept/{name}" for name in traces},
    }
    assert (output / "everything.tar.gz").stat().st_size < 2**14


def documented_calls() -> Iterator[argparse.Namespace]:
    """The calls in the script's docstring, as it would parse them."""
    from benchmarks import gpu

    lines = str(gpu.__doc__).splitlines()
    for words in (shlex.split(line, comments=True) for line in lines if " -m benchmarks." in line):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", words[2:])
            yield gpu.parse()


def test_the_calls_that_are_documented_name_what_there_is_and_their_rounds_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What scouts counts too: a setting that differs would make another experiment of it."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu_sections import sections

    folders = ROOT.glob("plugins/*/*/sample_configurations/scenarios")
    shipped = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    settings: dict[str, list[list[str]]] = {}
    for asked in documented_calls():
        limits = {one.name: one.seconds for one in sections(asked, tmp_path)}
        assert set(asked.sections) <= set(limits)
        works = [name for name in asked.sections if name in shipped]
        for name in works:
            settings.setdefault(name, []).append(asked.settings)
            written = yaml.safe_load(shipped[name].read_text())
            assert set(asked.only) <= set(written["stacks"])
        if "kernels" in asked.sections:
            assert asked.sections == ["kernels"]
            assert asked.seconds > limits["kernels"] > 540
    assert len(settings["single-gpu-full"]) == len(settings["single-gpu-lora"]) == 2
    assert all(one == found[0] for found in settings.values() for one in found)
    assert not any("measure.steps" in one for found in settings.values() for one in found[0])


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
