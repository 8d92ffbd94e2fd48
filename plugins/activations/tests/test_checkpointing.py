"""Checkpointing of blocks: gradients are equal bit for bit, and recomputed FLOPs are real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_activations.activations import CheckpointingOptions
from accel_bench_activations.checkpointing_impl import Checkpointing
from flop_counting import GPT2, ROTARY, catalog_model, counted_flops, run_of

from accel_bench.effective import CheckpointedBlocks
from accel_bench.errors import ScenarioError
from accel_bench.flops.formulas import hardware_flops, model_flops
from accel_bench.flops.workload import Workload
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.recomputation import read_checkpointing

LENGTH = 48
SIZES = {"llama-3-8b": ROTARY, "gpt2": GPT2, "mixtral-8x7b": ROTARY}
EVERYWHERE = {"dropout": 0.2, "target_modules": "all-linear"}
POLICIES: list[dict[str, Any]] = [
    {},
    {"policy": "every"},
    {"policy": "selective"},
    {"policy": "selective", "keep": ["attention"]},
]
compiling = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def selected(names: Iterable[str], chosen: Callable[[str, bool, str], bool]) -> Any:
    """Return each model under each adapter and policy as parameters; `chosen` run by default."""
    found = []
    for name, adapted, given in product(names, (False, True), POLICIES):
        policy = "-".join(map(str, given.values())) or "all"
        marks = () if chosen(name, adapted, policy) else pytest.mark.release
        identity = f"{'lora' if adapted else 'all'}-{name}-{policy}"
        found.append(pytest.param(name, adapted, given, marks=marks, id=identity))
    return pytest.mark.parametrize(("name", "adapted", "given"), found)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def build(name: str = "llama-3-8b", lora: dict[str, Any] | None = None) -> Any:
    model = catalog_model(name, SIZES[name], lora=lora, device="cpu")
    model.config._attn_implementation = "sdpa"
    return model


def checkpointed(model: Any, **given: Any) -> Checkpointing:
    return Checkpointing(model, CheckpointingOptions.model_validate_json(json.dumps(given)))


def gradients(model: Any) -> list[torch.Tensor]:
    """Return the gradients of two passes with dropout, and the loss."""
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    torch.manual_seed(3)
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def compile_blocks(model: Any) -> None:
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")


@selected(["llama-3-8b"], lambda name, adapted, policy: adapted or policy == "selective")
def test_gradients_are_those_without_checkpointing(
    name: str, adapted: bool, given: dict[str, Any]
) -> None:
    lora = EVERYWHERE if adapted else None
    plain, again = build(name, lora), build(name, lora)
    checkpointing = checkpointed(again, **given)
    assert equal(gradients(again), gradients(plain))
    evidence = checkpointing.evidence()
    assert evidence["recomputations"] == evidence["forwards"] == 2 * evidence["checkpointed_blocks"]


def test_dropout_between_operations_that_are_kept_draws_the_same_numbers() -> None:
    """GPT-2 drops in attention, behind it, and behind the MLP."""
    plain, again = build("gpt2"), build("gpt2")
    checkpointing = checkpointed(again, policy="selective")
    assert equal(gradients(again), gradients(plain))
    kept = checkpointing.evidence()["kept"]
    assert kept["aten.addmm"] == 4
    assert not any("dropout" in name or "bernoulli" in name for name in kept)


@compiling
def test_blocks_that_are_compiled_afterwards_have_the_same_gradients() -> None:
    plain, again = build(), build()
    compile_blocks(plain)
    expected = gradients(plain)
    torch.compiler.reset()
    checkpointing = checkpointed(again, policy="selective")
    compile_blocks(again)
    assert equal(gradients(again), expected)
    assert checkpointing.evidence()["recomputations"] is None


def differs_in_kind(name: str, adapted: bool, policy: str) -> bool:
    """Return whether a case has a model, an adapter or a policy that no other case has."""
    if name == "llama-3-8b":
        return adapted or policy == "all"
    return policy == "selective" and adapted == (name == "mixtral-8x7b")


@selected(SIZES, differs_in_kind)
def test_hardware_flops_are_those_that_torch_counts(
    name: str, adapted: bool, given: dict[str, Any], tmp_path: Path
) -> None:
    lora = {"target_modules": "all-linear"} if adapted else None
    model = catalog_model(name, SIZES[name], lora=lora, device="cpu")
    checkpointed(model, **given)
    counted, workload = first_step(model, tmp_path)
    found = hardware_flops(workload, LENGTH)
    assert found is not None
    assert found.non_causal == pytest.approx(counted, rel=1e-9)


def test_hardware_flops_are_not_known_where_some_products_are_kept_and_some_are_not(
    tmp_path: Path,
) -> None:
    model = catalog_model("llama-3-8b", ROTARY, device="cpu")
    checkpointed(model, policy="selective", keep=["aten.mm"])
    _, workload = first_step(model, tmp_path)
    assert hardware_flops(workload, LENGTH) is None
    assert model_flops(workload, LENGTH).non_causal > 0


@compiling
def test_hardware_flops_are_not_known_of_blocks_that_a_compiler_checkpoints_in_part(
    tmp_path: Path,
) -> None:
    model = build()
    checkpointed(model, policy="selective")
    compile_blocks(model)
    gradients(model)
    workload = read_workload(run_of(model, tmp_path))
    assert workload is not None
    assert hardware_flops(workload, LENGTH) is None


def first_step(model: Any, folder: Path) -> tuple[float, Workload]:
    """Return FLOPs per token as torch counts them in a first step, and the workload after it."""
    run = run_of(model, folder)
    probe = FirstStepProbe(run)
    counted = counted_flops(model, LENGTH)
    probe.remove()
    workload = read_workload(run)
    assert workload is not None
    return counted, workload


def test_one_block_of_two_is_checkpointed_and_afterwards_none() -> None:
    model = build()
    checkpointing = checkpointed(model, policy="every")
    layers = model.model.layers
    assert [layer.gradient_checkpointing for layer in layers] == [True, False, True]
    checkpointing.stop_counting()
    assert [hasattr(layer, "_gradient_checkpointing_func") for layer in layers] == [True] * 3
    checkpointing.undo()
    assert read_checkpointing(model) == CheckpointedBlocks(checkpointed=0, blocks=3)
    assert not model.is_activation_checkpointing


def test_counting_stops_with_the_warm_up_and_checkpointing_goes_on() -> None:
    model = build()
    checkpointing = checkpointed(model, policy="selective")
    gradients(model)
    before = checkpointing.evidence()
    checkpointing.stop_counting()
    assert equal(gradients(model)[:1], gradients(build())[:1])
    assert checkpointing.evidence() == before
    assert read_checkpointing(model).checkpointed == 3


def test_a_model_without_blocks_of_transformers_is_refused() -> None:
    with pytest.raises(ScenarioError, match="Sequential has no block"):
        checkpointed(torch.nn.Sequential(torch.nn.Linear(1, 1)))
