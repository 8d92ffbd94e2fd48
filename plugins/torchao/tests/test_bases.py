"""Quantized bases: only adapters train, memory is as declared, and checkpoints work."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_torch.ddp import DDP, DDPOptions
from accel_bench_torchao import TorchAO

from accel_bench import load_base_model
from accel_bench.errors import PluginError
from accel_bench.testing import evidence_of, run_plugin
from accel_bench.worker.flops.trace import read_workload

# What torch, peft and torchao say of themselves while they are imported is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

QUANTIZED: list[dict[str, Any]] = [
    {"weights": "int8"},
    {"weights": "int8", "group_size": 32},
    {"weights": "intx", "bits": 4},
    {"weights": "intx", "bits": 2},
    {"weights": "float8"},
    {"weights": "nf4"},
]

FLOAT8 = {"float8_training": "tensorwise", "emulate": True}


def label(value: object) -> str:
    """Name a case after its options."""
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("options", [*QUANTIZED, FLOAT8], ids=label)
def test_the_loss_falls_and_gradients_reach_the_adapters_and_nothing_else(
    options: dict[str, Any], bench: Any
) -> None:
    run = bench.build(bench.plugin(**options))
    losses = bench.train(run.model)
    adapters = {name for name, _ in run.model.named_parameters() if "lora_" in name}
    assert losses[-1] < 0.9 * losses[0]
    assert len(adapters) == 2 * bench.linears
    assert bench.reached(run.model) == adapters


@pytest.mark.parametrize("options", [*QUANTIZED, FLOAT8], ids=label)
def test_weights_adapters_and_work_are_those_of_plain_lora(
    options: dict[str, Any], bench: Any
) -> None:
    plain = bench.build(None)
    run = bench.build(bench.plugin(**options))
    other = dict(plain.model.named_parameters())
    assert run.weights_fingerprint == plain.weights_fingerprint != ""
    assert read_workload(run) == read_workload(plain)
    for name, parameter in run.model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter, other[name])


@pytest.mark.parametrize("options", [*QUANTIZED, FLOAT8], ids=label)
def test_losses_are_close_to_plain_lora_s(options: dict[str, Any], bench: Any) -> None:
    plain = bench.train(bench.build(None).model, 3)
    losses = bench.train(bench.build(bench.plugin(**options)).model, 3)
    tolerance = TorchAO.loss_tolerance or 0
    assert losses != plain
    assert losses == pytest.approx(plain, rel=tolerance)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"weights": "int8"}, 0.52),
        ({"weights": "int8", "group_size": 32}, 0.58),
        ({"weights": "intx", "bits": 4}, 0.55),
        ({"weights": "intx", "bits": 2}, 0.55),
        ({"weights": "float8"}, 0.52),
        ({"weights": "nf4"}, 0.26),
    ],
    ids=label,
)
def test_quantized_layers_take_this_share_of_bfloat16(
    options: dict[str, Any], share: float, bench: Any
) -> None:
    """Integers of few bits take a byte each; only nf4 is packed."""
    plugin = bench.plugin(**options)
    run = bench.run(model={"dtype": "bfloat16"})
    run.model = plugin.load_model(run)
    found = evidence_of(run)
    assert found["quantized_bytes"] / found["quantized_bytes_in_bfloat16"] == pytest.approx(
        share, abs=0.01
    )
    assert found["quantized_modules"] == 28
    assert found["quantized_elements"] * 2 == found["quantized_bytes_in_bfloat16"]


def test_evidence_names_configuration_group_and_version(bench: Any) -> None:
    plugin = bench.plugin(weights="intx", bits=3)
    run = bench.run()
    run.model = plugin.load_model(run)
    found = evidence_of(run)
    expected = {
        "quantized_modules": bench.linears,
        "module_classes": {"Linear": bench.linears},
        "bits": 3,
        "kernel": "dequantize, mm",
        "configuration": "IntxWeightOnlyConfig",
        "weight_class": "IntxUnpackedToInt8Tensor",
        "group_size": 32,
        "left_in_full_precision": {},
    }
    assert {key: found[key] for key in expected} == expected
    assert found["torchao"].startswith("0.18")


@pytest.mark.parametrize(("weights", "kept"), [("int8", True), ("float8", True), ("nf4", False)])
def test_dequantized_weights_live_until_backward_except_with_nf4(
    weights: str, kept: bool, bench: Any
) -> None:
    """Why a quantized base saves little memory in training without gradient checkpointing."""
    model = bench.build(bench.plugin(weights=weights)).model
    shapes = set()

    def keep(tensor: Any) -> Any:
        if type(tensor) is torch.Tensor and tensor.is_floating_point():
            shapes.add(tuple(sorted(tensor.shape)))
        return tensor

    rows = torch.zeros(1, 8, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=rows, labels=rows)
    assert ((128, 384) in shapes) is kept


def test_a_transposed_layer_is_turned_and_computes_the_same(bench: Any) -> None:
    from accel_bench_torchao.impl import straightened
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(6, 4)
    inputs = torch.randn(3, 4)
    assert torch.allclose(straightened(layer)(inputs), layer(inputs), atol=1e-6)


def test_experts_stay_as_they_are_and_the_evidence_says_so(bench: Any) -> None:
    small = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 2,
        "vocab_size": 128,
    }
    plugin = bench.plugin(weights="int8")
    run = bench.run(model={"id": "mixtral-8x7b", "overrides": small})
    plugin.load_model(run)
    found = evidence_of(run)
    assert found["quantized_modules"] == 4
    assert "MixtralExperts" in found["left_in_full_precision"]


def test_a_group_that_does_not_divide_names_the_layer(bench: Any) -> None:
    plugin = bench.plugin(weights="intx", group_size=48)
    with pytest.raises(PluginError, match=r"group_size 48 does not divide the 128 inputs of model"):
        plugin.load_model(bench.run())


@pytest.mark.parametrize("options", QUANTIZED, ids=label)
def test_a_saved_and_loaded_checkpoint_gives_the_same_logits(
    options: dict[str, Any], bench: Any
) -> None:
    """Saved by torch, and read by the loader that runs no code."""
    rows = torch.arange(16)[None]
    model = bench.plugin(**options).load_model(bench.run())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    # Other weights, so that nothing of the first model is left.
    other = load_base_model(bench.run(train={"seed": 1}))
    other.load_state_dict(torch.load(file, weights_only=True), assign=True)
    with torch.no_grad():
        assert torch.equal(model(input_ids=rows).logits, other(input_ids=rows).logits)


def test_a_safetensors_checkpoint_gives_the_same_logits(bench: Any, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    from torchao.prototype.safetensors.safetensors_support import (
        flatten_tensor_state_dict,
        unflatten_tensor_state_dict,
    )

    rows = torch.arange(16)[None]
    model = bench.plugin(weights="int8").load_model(bench.run())
    path = tmp_path / "model.safetensors"
    tensors, metadata = flatten_tensor_state_dict(model.state_dict())
    save_file(tensors, path, metadata)
    with safe_open(path, "pt") as opened:
        state, rest = unflatten_tensor_state_dict(load_file(path), opened.metadata())
    other = load_base_model(bench.run(train={"seed": 1}))
    other.load_state_dict(state, assign=True)
    assert not rest
    with torch.no_grad():
        assert torch.equal(model(input_ids=rows).logits, other(input_ids=rows).logits)


def test_quantizing_sets_nothing_of_inductor(bench: Any) -> None:
    import torch._inductor.config as inductor

    before = inductor.coordinate_descent_tuning
    for weights in ("int8", "float8"):
        bench.plugin(weights=weights).load_model(bench.run())
    assert inductor.coordinate_descent_tuning == before


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("options", QUANTIZED, ids=label)
def test_ddp_replicates_a_quantized_base(options: dict[str, Any], bench: Any, group: None) -> None:
    """Without the plugin's word DDP sends every parameter once, which torchao's cannot stand."""
    run = bench.build(bench.plugin(**options))
    losses = bench.train(DDP(DDPOptions()).parallelize_model(run), 2)
    assert losses[1] < losses[0]


@pytest.mark.gpu
@pytest.mark.parametrize("options", QUANTIZED, ids=label)
def test_quantized_bases_train_on_a_gpu(options: dict[str, Any]) -> None:
    """The same checks as on a CPU, where there is a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    result = run_plugin(
        "torchao", device="cuda", scenario={"model": {"dtype": "bfloat16"}}, **options
    )
    assert result.status.completed, result.reasons
