"""The plugin in the real program, and held against the contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call
from several_ranks.scenarios import STARTS, forking

from accel_bench import Status
from accel_bench.documents.presets import find_presets
from accel_bench.testing import check_plugin, run_plugin

# What torch, peft and torchao say of themselves while they are imported is not ours to mend.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

FLOAT8 = {"float8_training": "tensorwise", "emulate": True}


def test_importing_the_plugin_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys, accel_bench_torchao; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("archs", [(), pytest.param(None, marks=pytest.mark.release)])
def test_a_quantized_base_keeps_the_contract(archs: Any) -> None:
    assert check_plugin("torchao", options={"weights": "int8"}, archs=archs).ran


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"weights": "nf4"}, id="nf4", marks=pytest.mark.release),
        pytest.param(FLOAT8, id="float8-training"),
    ],
)
def test_nf4_and_float8_training_keep_the_contract(options: dict[str, Any]) -> None:
    assert check_plugin(
        "torchao", options=options, archs=["LlamaForCausalLM"], dtypes=["float32"]
    ).ran


def test_a_real_run_shows_the_time_of_quantizing_and_which_kernels_it_has() -> None:
    result = run_plugin("torchao", weights="float8")
    (rank,) = result.ranks
    (metric,) = [metric for metric in rank.metrics if metric.name == "quantize_seconds"]
    assert result.status is Status.OK or result.status is Status.DEGRADED, result.reasons
    assert metric.value is not None and metric.value > 0
    assert rank.effective.linear_kernels == {"Linear[Float8Tensor]": 14, "Linear": 1}


@pytest.mark.parametrize(
    "name", ["int8-torchao", "intx4-torchao", "nf4-torchao", "float8-weights", "float8-training"]
)
def test_named_stacks_are_found(bench: Any, name: str) -> None:
    assert "accel_bench_torchao" in str(find_presets("stacks")[name])


SCENARIO = {
    "name": "end-to-end",
    "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 2}},
    "data": {"sequence_length": 16},
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 1, "steps": 2, "rounds": 1},
}


def accel_bench(folder: Path, *arguments: str, start: Any = forking) -> Done:
    """Run the program in this process, as its ranks are: they import no library anew."""
    with start(folder / "site") as launching:
        words = launching if "--dry-run" not in arguments else ()
        return call(*arguments, *words, folder=folder, HOME=str(folder), COLUMNS="200")


@pytest.mark.parametrize("start", STARTS)
def test_the_program_runs_it_beside_plain_lora_and_ends_in_a_table(
    bench: Any, start: Any, tmp_path: Path
) -> None:
    """The adapter that it needs is added to the baseline too."""
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    done = accel_bench(
        tmp_path, "run", "s.yaml", "--plugin", "torchao", "--results", "r", start=start
    )
    assert done.code == 0, done.out + done.err
    assert "adapter: lora added to every stack: torchao needs one" in done.out + done.err
    rows = {line.partition(" ")[0] for line in done.out.splitlines()}
    assert {"baseline", "torchao"} <= rows, done.out


def test_the_sample_scenario_is_planned_and_nothing_in_it_is_skipped(tmp_path: Path) -> None:
    done = accel_bench(tmp_path, "run", "torchao-cpu", "--dry-run", "--results", "r")
    assert done.code == 0, done.out + done.err
    assert "skipped" not in done.out
