"""Float8 training: every recipe trains, with and without adapters, and is undone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_bench import Machine
from accel_bench.testing import close_run, evidence_of, make_machine, run_plugin

# What torch, peft and torchao say of themselves while they are imported is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

FLOAT8 = {"float8_training": "tensorwise", "emulate": True}


@pytest.mark.parametrize("name", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_every_recipe_trains_all_weights_without_an_adapter(name: str, bench: Any) -> None:
    plugin = bench.plugin(float8_training=name, emulate=True)
    run = bench.build(plugin, adapter=False)
    losses = bench.train(run.model, 5)
    found = evidence_of(run)
    assert losses[-1] < losses[0]
    assert (found["converted_modules"], found["unconverted_modules"]) == (bench.linears, 0)
    assert (found["recipe"], found["unused_weight_gradients"]) == (name, 0)
    assert bench.reached(run.model) == {name for name, _ in run.model.named_parameters()}
    close_run(run)


def test_float8_leaves_adapters_and_the_output_layer_alone(bench: Any) -> None:
    plugin = bench.plugin(**FLOAT8)
    run = bench.build(plugin)
    kinds = {name: type(module).__name__ for name, module in run.model.named_modules()}
    converted = {name for name, kind in kinds.items() if kind == "Float8Linear"}
    assert len(converted) == bench.linears
    assert all(name.endswith("base_layer") for name in converted)
    # torchao computes the gradients of frozen weights too, and throws them away.
    assert evidence_of(run)["unused_weight_gradients"] == bench.linears
    close_run(run)


def test_closing_puts_layers_and_the_compiler_back(bench: Any) -> None:
    from torch._inductor.codegen.triton import TritonOverrides

    before = {name: vars(TritonOverrides)[name] for name in ("minimum", "maximum")}
    plugin = bench.plugin(**FLOAT8)
    run = bench.build(plugin)
    assert vars(TritonOverrides)["minimum"] is not before["minimum"]
    close_run(run)
    assert {name: vars(TritonOverrides)[name] for name in before} == before
    assert not [m for m in run.model.modules() if type(m).__name__ == "Float8Linear"]
    # The next model of the process is patched, and put back, as the first one was.
    again = bench.plugin(**FLOAT8)
    run = bench.build(again)
    assert vars(TritonOverrides)["minimum"] is not before["minimum"]
    close_run(run)
    assert {name: vars(TritonOverrides)[name] for name in before} == before


def reasons(bench: Any, plugin: Any, where: Machine, **settings: Any) -> str:
    """Reasons why the plugin cannot run; empty if it can."""
    return "; ".join(plugin.check_scenario(bench.experiment(**settings), where))


def test_float8_training_is_skipped_where_a_device_cannot(bench: Any) -> None:
    plugin, cuda = bench.plugin(float8_training="tensorwise"), {"resources": {"device": "cuda"}}
    assert "emulate: true" in reasons(bench, plugin, make_machine())
    assert "8.9, GPU 0 has 8.0" in reasons(bench, plugin, make_machine((8, 0)), **cuda)
    assert reasons(bench, plugin, make_machine((8, 9)), **cuda) == ""
    assert reasons(bench, bench.plugin(**FLOAT8), make_machine()) == ""
    assert reasons(bench, bench.plugin(), make_machine()) == ""


def test_rowwise_products_need_bfloat16_and_a_cpu_no_autocast(bench: Any) -> None:
    rowwise = bench.plugin(float8_training="rowwise")
    cuda, half = {"device": "cuda"}, {"id": "tiny-llama-cpu", "dtype": "bfloat16"}
    assert "model.dtype is float32" in reasons(bench, rowwise, make_machine((9, 0)), resources=cuda)
    assert reasons(bench, rowwise, make_machine((9, 0)), resources=cuda, model=half) == ""
    autocast = {"precision": "bf16-autocast"}
    assert "autocast" in reasons(bench, bench.plugin(**FLOAT8), make_machine(), train=autocast)


@pytest.mark.gpu
def test_float8_products_train_on_a_gpu() -> None:
    """Not emulated; needs compute capability 8.9."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU of compute capability 8.9")
    result = run_plugin(
        "torchao",
        device="cuda",
        scenario={"model": {"dtype": "bfloat16"}},
        float8_training="rowwise",
    )
    assert result.status.completed, result.reasons
