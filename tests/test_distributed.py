"""Two ranks against one process: the same global batch gives the same losses and tokens.

With SGD, since an Adam takes the same steps whatever the scale of the gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel_bench import Result, Status
from accel_bench.analysis.metrics.throughput import run_throughput, token_summary
from accel_bench.store.database import open_store
from accel_bench.testing import run_program

pytestmark = pytest.mark.long

SCENARIO = """
name: shards
model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 1}}
data: {use: text, source: path, path: %(text)s, sequence_length: %(length)d%(data)s}
optimizer: sgd
train: {global_batch_size: 8, gradient_accumulation: %(accumulation)d, learning_rate: 0.1}
resources: {device: cpu, threads: 1}
measure: {warmup: 1, steps: 4, rounds: 1}
"""


def run(folder: Path, name: str, devices: int, accumulation: int = 1, **changes: Any) -> Result:
    """Run the scenario as a user does, and read back what was stored."""
    text = folder / "text"
    if not text.exists():
        text.mkdir()
        for number in range(40):
            words = " ".join(f"word{number * i % 97}" for i in range(30 + number))
            (text / f"{number}.txt").write_text(words)
    scenario = folder / f"{name}.yaml"
    scenario.write_text(text_of(folder, accumulation, **changes))
    results = folder / name
    settings = ("--set", f"resources.devices={devices}", "--results", str(results))
    done = run_program("run", str(scenario), "--quiet", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    with open_store(results, write=False) as store:
        (result,) = store.results()
    return result


def text_of(folder: Path, accumulation: int = 1, data: str = "", length: int = 32) -> str:
    """The scenario's text."""
    values = {"text": folder / "text", "accumulation": accumulation, "data": data}
    return SCENARIO % {**values, "length": length}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def one(folder: Path) -> Result:
    return run(folder, "one", devices=1)


@pytest.fixture(scope="module")
def two(folder: Path) -> Result:
    return run(folder, "two", devices=2)


def test_the_losses_of_two_ranks_are_those_of_one_process(one: Result, two: Result) -> None:
    alone, together = run_throughput(one), run_throughput(two)
    assert alone is not None and together is not None
    assert len(alone.losses) == 5
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)


def test_the_tokens_of_two_ranks_are_those_of_one_process(one: Result, two: Result) -> None:
    alone, together = run_throughput(one), run_throughput(two)
    assert alone is not None and together is not None
    assert together.real_tokens == alone.real_tokens
    assert together.step_tokens == alone.step_tokens
    assert together.tokens_per_second_per_device == pytest.approx(together.tokens_per_second / 2)


def test_both_ranks_wrote_their_samples_and_say_what_they_used(two: Result) -> None:
    assert two.status is Status.OK
    assert [rank.rank for rank in two.ranks] == [0, 1]
    for rank in two.ranks:
        assert rank.window is not None
        assert len(rank.window.samples) == 4
        assert rank.effective.strategy == "DistributedDataParallel"
        assert rank.effective.world_size == 2
    assert {rank.device.index for rank in two.ranks} == {0, 1}


def test_the_replicas_agree_after_the_window(two: Result) -> None:
    assert two.ranks[0].evidence["ddp"] == {"world_size": 2, "replica_difference": 0.0}


def test_padded_batches_and_accumulation_give_the_same_losses_too(folder: Path) -> None:
    padded = ", packing: false, padding: longest"
    single = run(folder, "one-padded", 1, data=padded, length=256)
    alone, counted = run_throughput(single), token_summary(single)
    together = run_throughput(run(folder, "two-padded", 2, 2, data=padded, length=256))
    assert alone is not None and together is not None and counted is not None
    assert counted.total_global.processed > counted.total_global.real
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)
    assert together.real_tokens == alone.real_tokens


def test_a_model_that_no_plugin_parallelizes_is_invalid(folder: Path) -> None:
    scenario = folder / "apart.yaml"
    scenario.write_text(text_of(folder) + "parallel: none\n")
    settings = ("--set", "resources.devices=2", "--results", str(folder / "apart"))
    done = run_program("run", str(scenario), "--quiet", *settings)
    assert done.returncode == 1
    assert "nothing joins the gradients of 2 processes" in done.stdout


def test_a_rehearsal_is_one_process_and_shares_its_work_with_nobody(folder: Path) -> None:
    """The preparation of torch-compile takes steps, in one process, where the runs have two."""
    scenario = folder / "compiled.yaml"
    scenario.write_text(text_of(folder))
    stacks = ("--plugin", "torch-compile", "--only", "torch-compile", "--no-baseline")
    settings = ("--set", "resources.devices=2", "--results", str(folder / "compiled"))
    done = run_program("run", str(scenario), "--quiet", *stacks, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
