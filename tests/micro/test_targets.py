"""All benchmarks as tests, as people who know pytest run them: real programs, at tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from micro.distribution import install

STRANGER = """
from accel_bench.micro import Benchmark, Executor

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


def program(folder: Path, *command: str, code: int = 0) -> str:
    """Run a program of Python's as a person does, and return what it prints."""
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder / "site"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_pytest_collects_selects_groups_saves_and_compares_them(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    groups = {
        "accel_bench.micro": {"doubled": "stranger_micro:Doubled"},
        "accel_bench.executors": {"tripled": "stranger_micro:Tripled"},
    }
    install(tmp_path / "site", groups, STRANGER)
    targets = ("pytest", "--pyargs", "accel_bench.micro.targets")

    collected = program(tmp_path, *targets, "--collect-only", "-q")
    for line in (
        "::test_llama_mlp[backward-eager-tiny]",
        "::test_llama_mlp[inference-inductor-llama-2-7b]",
        "::test_doubled[forward-tripled-tiny]",  # both of another distribution
    ):
        assert line in collected

    quick = ("--benchmark-max-time=0", "--benchmark-autosave", "-rs", "-q")
    chosen = "(llama_mlp or doubled) and tiny and not backward and not inductor and not inference"
    grouped = "--benchmark-group-by=param:compute_type"
    first = program(tmp_path, *targets, "-k", chosen, grouped, *quick, code=1)
    assert "benchmark 'compute_type=ComputeType.TRAINING_FORWARD': 2 tests" in first
    assert "test_llama_mlp[forward-eager-tiny]" in first
    assert "[backward-" not in first and "[inference-" not in first
    # Wrong, and fast: it is nowhere among the times.
    assert "invalid: output is off by 0.5 of its size from eager in float64" in first
    assert "executor thunder needs lightning-thunder: pip install lightning-thunder" in first

    (saved,) = tmp_path.glob(".benchmarks/*/0001_*.json")
    cells = {one["name"]: one for one in json.loads(saved.read_text("utf8"))["benchmarks"]}
    assert set(cells) == {"test_llama_mlp[forward-eager-tiny]", "test_doubled[forward-eager-tiny]"}
    info = cells["test_llama_mlp[forward-eager-tiny]"]["extra_info"]
    assert info["outcome"] == "ok" and info["distance"] <= info["tolerance"]
    assert info["peak_memory_bytes"] > 0 and 0 < info["roofline_share"]
    assert info["flops_per_second"] > 0

    one = ("-k", "llama_mlp and backward and tiny and eager")
    program(tmp_path, *targets, *one, *quick)
    compared = program(tmp_path, "pytest_benchmark", "compare", "0001", "0002", "--group-by=name")
    assert "test_llama_mlp[backward-eager-tiny]" in compared
