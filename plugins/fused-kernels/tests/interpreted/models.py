"""Every architecture with Liger's kernels, by our rules and by Liger's own: loss and gradients.

Small, since the interpreter takes about a millisecond for a row of a kernel.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from accel_bench_fused_kernels.impl.liger_patch import LigerPatch
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from accel_bench.errors import PluginError
from accel_bench.testing import check_plugin

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = (
    "GPTBigCode Gemma Gemma2 Gemma3 Granite GraniteMoe Llama Mistral Mixtral Qwen2 Qwen3".split()
)

DIFFERENT = ("GPTBigCode", "Gemma2", "Mixtral", "Qwen3")
"""Representative architectures: without RMSNorm, with two more and an offset, with experts, and the
usual one with norms of queries and keys."""


def each(families: Iterable[str], always: Sequence[str] = DIFFERENT) -> list[Any]:
    """Return families as parameters, all but some only for releases."""
    release = pytest.mark.release
    return [pytest.param(one, marks=() if one in always else release) for one in families]


WITHOUT_PATCH = ("GPTBigCode", "GraniteMoe")
"""Architectures without a patch in Liger."""

LOSSES = ("linear_cross_entropy", "cross_entropy")

LENGTH = 3

CLOSE = 2e-5
"""Maximum distance of float32 gradients, relative to each tensor's norm."""


def small(bench: Any, family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of one layer."""
    return bench.build(
        family, dtype, **{"n_layer" if family == "GPTBigCode" else "num_hidden_layers": 1}
    )


@pytest.mark.parametrize("family", each(FAMILIES))
def test_loss_and_gradients_are_the_model_s_own(family: str, bench: Any) -> None:
    model = small(bench, family)
    expected, gradients = bench.step(model, LENGTH, num_items_in_batch=17)
    fused = bench.fuse(model)
    found = bench.step(model, LENGTH, num_items_in_batch=17)
    assert found[0] == pytest.approx(expected, rel=1e-6)
    assert bench.distance(found[1], gradients) < CLOSE
    evidence = fused.evidence()
    absent = {"GPTBigCode": {"rms_norm", "rope", "gated_mlp"}}.get(family, set())
    everything = {"rms_norm", "rope", "gated_mlp", "linear_cross_entropy"}
    assert set(evidence["parts"]) == everything - absent
    assert {part["library"] for part in evidence["parts"].values()} == {"liger"}


@pytest.mark.parametrize("part", ["rms_norm", "rope", "gated_mlp", *LOSSES])
def test_each_part_alone_replaces_what_its_evidence_says_and_no_more(part: str, bench: Any) -> None:
    model = small(bench, "Qwen3")
    expected = bench.step(model, LENGTH)
    before = bench.code_of(model)
    fused = bench.fuse(model, **{part: True})
    changed = bench.differing(before, bench.code_of(model))
    found = bench.step(model, LENGTH)
    (evidence,) = fused.evidence()["parts"].values()
    assert len(changed) == evidence["replaced"] == {"rms_norm": 5}.get(part, 1)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert bench.distance(found[1], expected[1]) < CLOSE
    fused.undo()
    assert bench.differing(before, bench.code_of(model)) == []


@pytest.mark.parametrize("family", ["Llama", pytest.param("Gemma2", marks=pytest.mark.release)])
def test_gradients_are_right_under_checkpointing(family: str, bench: Any) -> None:
    model = small(bench, family)
    expected = bench.step(model, LENGTH)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    bench.fuse(model)
    found = bench.step(model, LENGTH)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert bench.distance(found[1], expected[1]) < CLOSE


def test_gradients_are_right_where_selective_checkpointing_keeps_products(bench: Any) -> None:
    """The rotary kernel overwrites the kept product."""
    model = small(bench, "Llama")
    expected = bench.step(model, LENGTH)
    bench.fuse(model)
    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    block = model.model.layers[0]
    block.forward = partial(
        checkpoint,
        block.forward,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, kept),
    )
    found = bench.step(model, LENGTH)
    assert bench.distance(found[1], expected[1]) < CLOSE


@pytest.mark.parametrize(
    ("targets", "covered"), [("all-linear", 1), (["q_proj", "k_proj", "v_proj", "o_proj"], 0)]
)
def test_gated_mlps_that_lora_computes_whole_are_left_to_it(
    targets: Any, covered: int, bench: Any
) -> None:
    model = get_peft_model(small(bench, "Llama"), LoraConfig(r=4, target_modules=targets)).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    expected = bench.step(model, LENGTH)
    before = bench.code_of(model)
    fused = bench.fuse(model)
    found = bench.step(model, LENGTH)
    evidence = fused.evidence()
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert bench.distance(found[1], expected[1]) < CLOSE
    assert evidence["left_out"] == {}
    assert evidence["parts"]["gated_mlp"]["covered_by_lora"] == covered
    assert evidence["parts"]["gated_mlp"]["replaced"] == 1 - covered
    fused.undo()
    assert bench.differing(before, bench.code_of(model)) == []


def test_where_only_the_output_projection_trains_it_gets_its_gradient(bench: Any) -> None:
    model = small(bench, "Llama").requires_grad_(False)
    model.lm_head.requires_grad_(True)
    expected = bench.step(model, LENGTH)
    bench.fuse(model, linear_cross_entropy=True)
    found = bench.step(model, LENGTH)
    assert set(found[1]) == {"lm_head.weight"}
    assert bench.distance(found[1], expected[1]) < CLOSE


@pytest.mark.parametrize(
    ("family", "autocast"),
    [
        ("Gemma", False),
        ("Qwen3", True),
        pytest.param("Gemma", True, marks=pytest.mark.release),
        pytest.param("Qwen3", False, marks=pytest.mark.release),
    ],
)
def test_in_half_precision_the_distance_is_that_of_rounding(
    family: str, autocast: bool, bench: Any
) -> None:
    """As far from float32 as the model's own operations are, at most twice.

    In float16: numpy, with which the interpreter computes, has no bfloat16.
    """
    exact = bench.step(small(bench, family), LENGTH)
    model = small(bench, family, torch.float32 if autocast else torch.float16)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        own = bench.step(model, LENGTH)
        bench.fuse(model)
        found = bench.step(model, LENGTH)
    assert found[0] == pytest.approx(own[0], rel=2e-4)
    assert bench.distance(found[1], exact[1]) < 2 * bench.distance(own[1], exact[1])


@pytest.mark.parametrize(
    "family", each((name for name in FAMILIES if name not in WITHOUT_PATCH), ("Gemma2", "Mixtral"))
)
def test_liger_s_own_patch_is_undone_and_its_loss_is_the_model_s_own(
    family: str, bench: Any
) -> None:
    model = small(bench, family)
    expected = bench.step(model, LENGTH, num_items_in_batch=17)
    before = bench.code_of(model)
    patch = LigerPatch(model)
    # Liger's experts are a kernel for GPUs alone.
    patch.apply({"swiglu": False} if family == "Mixtral" else {})
    try:
        found = bench.step(model, LENGTH, num_items_in_batch=17)
        evidence = patch.evidence()
    finally:
        patch.undo()
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert bench.distance(found[1], expected[1]) < CLOSE
    assert evidence["replaced_modules"] > 2
    assert bench.differing(before, bench.code_of(model)) == []


def test_of_liger_s_two_losses_one_switched_on_switches_the_other_off(bench: Any) -> None:
    model = small(bench, "Llama")
    patch = LigerPatch(model)
    patch.apply({"cross_entropy": True})
    try:
        assert "torch.nn.functional.cross_entropy" in patch.evidence()["attributes"]
        assert "forward" not in vars(model)
    finally:
        patch.undo()


def test_a_part_of_liger_s_that_transformers_does_not_read_is_refused(bench: Any) -> None:
    model = small(bench, "Mistral")
    before = bench.code_of(model)
    patch = LigerPatch(model)
    try:
        with pytest.raises(PluginError, match=r"sets .*modeling_mistral\.CrossEntropyLoss"):
            patch.apply({"cross_entropy": True})
    finally:
        patch.undo()
    assert bench.differing(before, bench.code_of(model)) == []


@pytest.mark.parametrize(
    "name", [pytest.param("fused-kernels", marks=pytest.mark.release), "liger"]
)
def test_the_plugin_keeps_the_contract_with_liger_s_kernels(name: str) -> None:
    tiny = {
        "model": {"overrides": {"num_hidden_layers": 1, "hidden_size": 48, "vocab_size": 160}},
        "data": {"sequence_length": 4, "vocab_size": 160},
        "train": {"micro_batch_size": 1},
        "measure": {"steps": 2},
    }
    report = check_plugin(name, scenario=tiny, archs=["LlamaForCausalLM"], dtypes=["float32"])
    clauses = {clause.name: clause for clause in report.clauses}
    assert clauses["undone at the end"].outcome == "proven"
    # So few steps show no movement of the loss; that it is near is what is asked here.
    assert clauses["loss of the baseline"].outcome != "violated"
    assert clauses["loss of the baseline"].sentence.startswith("differs by ")
