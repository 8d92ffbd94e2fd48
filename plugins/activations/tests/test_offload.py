"""Offload of activations on a CPU: tensors are copied once, and restored unchanged."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from accel_bench_activations.activations import CheckpointingOptions
from accel_bench_activations.checkpointing_impl import Checkpointing
from accel_bench_activations.offload_impl import OffloadHooks, Offloading, OnHost
from flop_counting import ROTARY, catalog_model
from torch.multiprocessing.reductions import StorageWeakRef

from accel_bench.errors import PluginError

SMALL = {**ROTARY, "num_hidden_layers": 2}
KIB = 1024


def build(lora: dict[str, Any] | None = None) -> Any:
    return catalog_model("llama-3-8b", SMALL, lora=lora, device="cpu")


def gradients(model: Any) -> list[torch.Tensor]:
    tokens = torch.arange(96).view(2, 48)
    torch.manual_seed(3)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def packing(*staying: torch.Tensor, minimum: int = 16) -> OffloadHooks:
    return OffloadHooks(lambda: {t.untyped_storage().data_ptr() for t in staying}, minimum, "cpu")


@pytest.mark.parametrize("lora", [None, {"dropout": 0.2}], ids=["all", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_without_offloading(
    lora: dict[str, Any] | None, checkpointing: bool
) -> None:
    plain, moved = build(lora), build(lora)
    if checkpointing:
        Checkpointing(moved, CheckpointingOptions())
    offloading = Offloading(moved, KIB, "cpu")
    assert all(map(torch.equal, gradients(plain), gradients(moved)))
    assert offloading.evidence()["bytes_per_forward"] >= KIB * offloading.stop_counting() > 0


def test_with_checkpointing_little_more_than_the_inputs_of_blocks_moves() -> None:
    whole, inputs = build(), build()
    Checkpointing(inputs, CheckpointingOptions())
    kept = []
    for model in (whole, inputs):
        offloading = Offloading(model, KIB, "cpu")
        gradients(model)
        kept.append(offloading.evidence()["bytes_per_forward"])
    hidden_states = 2 * 48 * 64 * 4
    assert 2 * hidden_states <= kept[1] < kept[0] / 5


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_blocks_are_offloaded_too() -> None:
    plain, moved = build(), build()
    for model in (plain, moved):
        for layer in model.model.layers:
            layer.compile(backend="aot_eager")
    expected = gradients(plain)
    offloading = Offloading(moved, KIB, "cpu")
    assert all(map(torch.equal, gradients(moved), expected))
    assert offloading.stop_counting() > 0
    torch.compiler.reset()


def test_the_decoder_has_its_own_forward_back_afterwards() -> None:
    model = build()
    offloading = Offloading(model, KIB, "cpu")
    assert "forward" in vars(model.model)
    offloading.undo()
    assert "forward" not in vars(model.model)


def test_counting_stops_with_the_warm_up_and_offloading_goes_on() -> None:
    model = build()
    offloading = Offloading(model, KIB, "cpu")
    gradients(model)
    before = offloading.evidence()
    offloading.stop_counting()
    gradients(model)
    assert offloading.evidence() == before


def test_weights_and_small_tensors_stay_and_everything_else_moves() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    hooks = packing(weight, minimum=64).hooks()
    assert isinstance(hooks.pack_hook(torch.ones(4, 4)), OnHost)
    for staying in (weight, weight.t(), weight.detach()[:2], torch.ones(4, 3)):
        assert isinstance(hooks.pack_hook(staying), torch.Tensor)


def test_a_tensor_that_two_operations_keep_moves_once() -> None:
    found, tensor = packing(), torch.rand(8)
    hooks = found.hooks()
    first, second = hooks.pack_hook(tensor), hooks.pack_hook(tensor)
    assert first is second and found.tensors == 1 and found.bytes == 32
    back = hooks.unpack_hook(first)
    assert torch.equal(back, tensor) and back.data_ptr() != tensor.data_ptr()
    assert hooks.unpack_hook(second) is back
    assert first.restored is None


def test_a_tensor_that_has_changed_since_moves_again() -> None:
    found, tensor = packing(), torch.zeros(8)
    hooks = found.hooks()
    before = hooks.pack_hook(tensor)
    tensor.add_(1)
    after = hooks.pack_hook(tensor)
    assert found.tensors == 2
    assert hooks.unpack_hook(before).sum() == 0 and hooks.unpack_hook(after).sum() == 8


def test_a_tensor_in_the_place_of_one_that_is_gone_moves_for_itself() -> None:
    found = packing()
    hooks, packed = found.hooks(), []
    for number in range(50):
        packed.append(hooks.pack_hook(torch.full((1024,), float(number))))
    assert [float(hooks.unpack_hook(one)[0]) for one in packed] == list(range(50))


def test_a_graph_that_is_dropped_is_freed_without_the_garbage_collector() -> None:
    """A saved output below the minimum size would otherwise refer to itself."""
    gc.disable()
    try:
        with packing(minimum=KIB).hooks():
            output = torch.ones(4, requires_grad=True).exp()
        kept = StorageWeakRef(output.untyped_storage())
        del output
        assert kept.expired()
    finally:
        gc.enable()


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(PluginError, match="Linear has no list of blocks"):
        Offloading(torch.nn.Linear(1, 1), KIB, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_copies_lie_in_pinned_memory_and_come_back_as_they_were() -> None:
    tensor = torch.rand(1024, device="cuda")
    hooks = OffloadHooks(set, 16, "cuda").hooks()
    packed = hooks.pack_hook(tensor)
    device, copy = packed.packed
    assert device.type == "cuda" and copy.is_pinned()
    assert torch.equal(hooks.unpack_hook(packed), tensor)
