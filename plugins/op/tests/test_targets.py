"""All benchmarks as pytest tests: real programs, at tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .distribution import install

STRANGER = """
from accel_bench_op import Benchmark, Executor

class Doubled(Benchmark):
    name = "doubled"
    sizes = {"tiny": {}}

    def make_batch(self):
        import torch

        return (torch.ones(2, 2, requires_grad=True),), {}

    def fn(self):
        return lambda x: 2 * x

class Tripled(Executor):
    operations = None

    def build(self, benchmark):
        fn = benchmark.fn()
        return lambda *args: fn(*args) * 1.5
"""


SEPARATOR = "=== next ==="

SESSIONS = f"""
import json, sys
import pytest
from pytest_benchmark.cli import main

for command in json.loads(sys.argv[1]):
    print({SEPARATOR!r}, flush=True)
    if command[0] == "compare":
        sys.argv[1:] = command
        main()
    else:
        print("exit code", int(pytest.main(command)))
"""
"""Program that calls pytest and pytest-benchmark like their commands, importing torch once."""


def outputs(folder: Path, *commands: list[str]) -> list[str]:
    """Return what each of several commands prints."""
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, json.dumps(commands)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder / "site"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(SEPARATOR)[1:]


@pytest.mark.skipif(find_spec("thunder") is not None, reason="counts cells without Thunder's")
def test_pytest_collects_selects_groups_saves_and_compares_them(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    entries = {
        "accel_bench.micro": {"doubled": "stranger_micro:Doubled", "gone": "stranger_gone"},
        "accel_bench.executors": {"tripled": "stranger_micro:Tripled"},
    }
    install(tmp_path / "site", entries, STRANGER)
    targets = ["--pyargs", "accel_bench_op.targets", "-q"]
    quick = [*targets, "--benchmark-max-time=0", "--benchmark-autosave", "-rs"]
    chosen = "(rms_norm or doubled) and tiny and forward and not inductor"
    collected, without_backward, first, again, compared = outputs(
        tmp_path,
        [*targets, "--collect-only", "-W", "error"],
        [*targets, "--collect-only", "-k", "llama_mlp and not backward"],
        [*quick, "-k", chosen, "--benchmark-group-by=param:compute_type"],
        [*quick, "-k", "rms_norm and forward-eager-tiny"],
        ["compare", "0001", "0002", "--group-by=name"],
    )
    for name in ("test_llama_mlp[backward-eager-tiny]", "test_doubled[forward-tripled-tiny]"):
        assert f"::{name}" in collected
    assert "::test_adamw_step[inference-eager-tiny]" in collected
    assert "::test_adamw_step[forward" not in collected
    assert "the benchmark 'gone' of stranger-micro 1.0 is broken: ModuleNotFoundE" in collected
    assert "::test_llama_mlp[inference-thunder-tiny]" in without_backward
    assert "backward-" not in without_backward and "test_doubled" not in without_backward

    assert "benchmark 'compute_type=forward': 2 tests" in first
    # Wrong, and fast: it is not among the times.
    assert first.count("invalid: output is off by 0.5 of its size from eager in float64") == 2
    assert "executor thunder needs lightning-thunder: pip install lightning-thunder" in first
    assert "exit code 1" in first and "exit code 0" in again

    norm, doubled = "test_rms_norm[forward-eager-tiny]", "test_doubled[forward-eager-tiny]"
    (saved,) = tmp_path.glob(".benchmarks/*/0001_*.json")
    cells = {one["name"]: one for one in json.loads(saved.read_text("utf8"))["benchmarks"]}
    assert set(cells) == {norm, doubled}
    assert cells[norm]["params"] == {
        "compute_type": "forward",
        "executor": "eager",
        "size": "tiny",
    }
    info = cells[norm]["extra_info"]
    assert info["outcome"] == "ok" and info["distance"] <= info["tolerance"]
    assert info["peak_memory_bytes"] > 0 and info["roofline_share"] > 0
    assert info["bytes_per_second"] > 0
    assert compared.count(norm) >= 2 and doubled in compared
