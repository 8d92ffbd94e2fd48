"""Choice of the experts' implementation: effect, evidence, refusals, undo."""

from __future__ import annotations

import json
import logging
from typing import Any

import peft
import pytest
import torch
from accel_bench_moe import MixtureOfExperts, MixtureOfExpertsOptions
from pydantic import ValidationError
from transformers import LlamaConfig, LlamaForCausalLM

from accel_bench.errors import PluginError
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.testing import close_run, evidence_of, make_experiment, make_machine
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.kernels import read_experts

IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")

# What torch and peft say of themselves while they import and trace is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
]


@pytest.mark.parametrize("kind", ["Mixtral", "GraniteMoe", "Olmoe", "Qwen2Moe", "Qwen3Moe"])
def test_transformers_own_choice_is_the_grouped_product(bench: Any, kind: str) -> None:
    """The README says so; where it is so no longer, an empty stack means something else."""
    assert read_experts(bench.model(kind)) == "grouped_mm"


@pytest.mark.parametrize("kind", ["Mixtral", "GraniteMoe", "Olmoe", "Qwen2Moe", "Qwen3Moe"])
@pytest.mark.parametrize("experts", IMPLEMENTATIONS)
def test_every_implementation_trains_to_the_same_losses(
    bench: Any, kind: str, experts: str
) -> None:
    loop, model = bench.model(kind), bench.model(kind)
    loop.set_experts_implementation("eager")
    _, run = bench.switch(model, experts)
    assert bench.losses(model) == pytest.approx(bench.losses(loop), rel=1e-5)
    evidence = evidence_of(run)
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence == {
        "summary": f"2 modules of experts by {experts}, by default grouped_mm",
        "experts": experts,
        "default": "grouped_mm",
        "switched_modules": 0 if experts == "grouped_mm" else 2,
        "expert_modules": 2,
        "module_class": f"{kind}Experts",
        "experts_per_module": bench.experts,
        "replaced_forwards": 0,
    }


def test_the_loop_is_really_what_computes(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grouped product is not called once after the switch, and is before it."""
    calls: list[int] = []
    product = torch.nn.functional.grouped_mm

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        return product(*arguments, **keywords)

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", counted)
    model = bench.model()
    bench.losses(model, steps=1)
    assert len(calls) == 4  # two products in each of two layers
    bench.switch(model, "eager")
    bench.losses(model, steps=1)
    assert len(calls) == 4


def test_closing_gives_the_model_its_own_choice_back(bench: Any) -> None:
    model = bench.model()
    _, run = bench.switch(model, "batched_mm")
    assert read_experts(model) == "batched_mm"
    close_run(run)
    assert read_experts(model) == "grouped_mm"


def test_a_forward_that_another_plugin_has_put_there_is_counted(bench: Any) -> None:
    model = bench.model()
    _, run = bench.switch(model, "eager")
    layer = bench.layers(model)[1]
    layer.forward = lambda hidden, chosen, weights: hidden
    assert evidence_of(run)["replaced_forwards"] == 1
    assert read_experts(model) == "eager, replaced"


@pytest.mark.parametrize("experts", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "targets",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj"]},
    ],
    ids=["attention", "experts"],
)
def test_adapters_train_as_they_do_beside_the_loop(
    bench: Any, experts: str, targets: dict[str, Any]
) -> None:
    """Experts are frozen, or have an adapter of PEFT's for parameters."""

    def adapted() -> Any:
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, init_lora_weights=False, **targets)
        return peft.get_peft_model(bench.model(), config)

    loop, model = adapted(), adapted()
    loop.set_experts_implementation("eager")
    _, run = bench.switch(model, experts)
    assert bench.losses(model) == pytest.approx(bench.losses(loop), rel=1e-5)
    assert evidence_of(run)["experts"] == experts


@pytest.mark.parametrize("experts", IMPLEMENTATIONS)
def test_checkpointed_layers_compute_the_same(bench: Any, experts: str) -> None:
    plain, model = bench.model(), bench.model()
    plain.set_experts_implementation("eager")
    enable_gradient_checkpointing(model)
    bench.switch(model, experts)
    assert bench.losses(model) == pytest.approx(bench.losses(plain), rel=1e-5)


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_captured_by_the_compiler_it_computes_the_same(bench: Any, experts: str) -> None:
    plain, model = bench.model(), bench.model()
    plain.set_experts_implementation("eager")
    bench.switch(model, experts)
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    try:
        assert bench.losses(model, steps=2) == pytest.approx(bench.losses(plain, 2), rel=1e-5)
    finally:
        torch.compiler.reset()


def test_the_work_that_is_read_does_not_depend_on_the_implementation(bench: Any) -> None:
    workloads = []
    for experts in IMPLEMENTATIONS:
        _, run = bench.switch(bench.model("GraniteMoe"), experts)
        run.logger = logging.getLogger("test")
        workloads.append(read_workload(run))
    assert workloads[0] is not None
    assert workloads[0] == workloads[1] == workloads[2]
    (first,) = [m for m in workloads[0].matmuls if m.name.endswith("gate_up_proj")]
    assert (first.rows, first.columns) == (24, 20)
    assert (first.count, first.share) == (2 * bench.experts, 2 / bench.experts)


@pytest.mark.parametrize("experts", IMPLEMENTATIONS)
def test_an_expert_without_tokens_does_not_look_like_a_cut_gradient(
    bench: Any, experts: str
) -> None:
    """Experts are one tensor for each matrix, which has a gradient when one of them has."""
    model = bench.model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight[2:] = -layer.mlp.gate.weight[:1]
    _, run = bench.switch(model, experts)
    probe = FirstStepProbe(run)
    bench.losses(model, steps=1)
    probe.check()
    gradients = [layer.gate_up_proj.grad.flatten(1).norm(dim=1) for layer in bench.layers(model)]
    assert probe.flow.modules_without_gradient == ()
    assert all(bool((norms > 0).any()) for norms in gradients)


def test_a_model_without_experts_is_refused(bench: Any) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 8}
    dense = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1))
    plugin = bench.plugin("eager")
    with pytest.raises(PluginError, match="LlamaForCausalLM holds no experts"):
        plugin.accelerate_model(bench.run(dense))


def test_rows_that_the_grouped_product_refuses_are_refused_before_the_first_step(
    bench: Any,
) -> None:
    model = bench.model(intermediate_size=10)
    with pytest.raises(PluginError, match=r"16 bytes, and down_proj has 10 x float32; .*eager"):
        bench.plugin("grouped_mm").accelerate_model(bench.run(model))
    rows = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(RuntimeError, match="16 bytes"):
        model(input_ids=rows)
    bench.switch(model, "eager")
    assert len(bench.losses(model)) == 4


@pytest.mark.parametrize(
    "experts, dtype, precision, refused",
    [
        ("grouped_mm", "float32", "bf16-autocast", True),
        ("grouped_mm", "float32", "fp16-autocast", True),
        ("grouped_mm", "bfloat16", "bf16-autocast", False),
        ("grouped_mm", "float32", "as-is", False),
        ("batched_mm", "float32", "bf16-autocast", False),
        ("eager", "float32", "bf16-autocast", False),
    ],
)
def test_autocast_that_the_grouped_product_would_not_follow_is_refused(
    bench: Any, experts: str, dtype: str, precision: str, refused: bool
) -> None:
    experiment = make_experiment({"model": {"dtype": dtype}, "train": {"precision": precision}})
    reasons = [*bench.plugin(experts).check_scenario(experiment, make_machine())]
    assert bool(reasons) is refused
    assert all("does not follow autocast" in reason for reason in reasons)


def test_the_grouped_product_does_not_follow_autocast() -> None:
    """Why that is refused; where torch mends it, the refusal goes."""
    rows, weights = torch.ones(4, 8), torch.ones(2, 8, 8)
    places = torch.tensor([1, 4], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        grouped = torch.nn.functional.grouped_mm(rows, weights, offs=places)
        assert (grouped.dtype, (rows @ rows.T).dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    "experts, capability, refused",
    [("grouped_mm", (7, 5), True), ("grouped_mm", (9, 0), False), ("eager", (7, 5), False)],
)
def test_a_gpu_that_is_too_old_for_the_grouped_product_is_named(
    bench: Any, experts: str, capability: tuple[int, int], refused: bool
) -> None:
    experiment = make_experiment({"resources": {"device": "cuda"}})
    reasons = [*bench.plugin(experts).check_scenario(experiment, make_machine(capability))]
    assert reasons == (
        [
            "torch's grouped_mm needs compute capability 8.0, GPU 0 has 7.5; use experts: eager or "
            "batched_mm"
        ]
        if refused
        else []
    )


def test_only_implementations_that_need_no_other_library_can_be_named() -> None:
    assert MixtureOfExpertsOptions().experts == "grouped_mm"
    with pytest.raises(ValidationError, match="batched_mm"):
        MixtureOfExperts.Options(experts="sonicmoe")
