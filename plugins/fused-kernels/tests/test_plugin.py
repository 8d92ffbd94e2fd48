"""The two plugins in the program: options, reasons, the contract, engines, other plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_fused_kernels import FusedKernels, FusedKernelsOptions, Liger, LigerOptions
from accel_bench_fused_kernels.plugin import PARTS, library_of
from pydantic import ValidationError

from accel_bench import Experiment, Loss, Options, Run, Scenario, Status, Task, hookimpl
from accel_bench.documents.presets import find_presets
from accel_bench.machine.info import read_machine
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import Stack
from accel_bench.testing import check_plugin, make_run, run_plugin

pytestmark = pytest.mark.filterwarnings("ignore")

MACHINE = read_machine()

FEW_STEPS = {"measure": {"steps": 2}}

PREFERENCES = {"task": "dpo", "data": {"use": "preferences", "limit_bytes": 20_000}}


@pytest.mark.parametrize(
    ("options", "on"),
    [
        ({}, set(PARTS) - {"cross_entropy"}),
        ({"rms_norm": True}, {"rms_norm"}),
        ({"rms_norm": True, "rope": True, "lora": None}, {"rms_norm", "rope"}),
        ({"rope": False}, set(PARTS) - {"cross_entropy", "rope"}),
        ({"cross_entropy": True}, {"cross_entropy"}),
        ({"linear_cross_entropy": False}, set(PARTS) - {"linear_cross_entropy"}),
        ({"rms_norm": True, "rope": False}, {"rms_norm"}),
    ],
)
def test_null_means_on_unless_another_part_is_switched_on_by_name(
    options: dict[str, Any], on: set[str]
) -> None:
    assert set(FusedKernelsOptions(**options).on()) == on


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValidationError, match="both compute the loss"):
        FusedKernelsOptions(cross_entropy=True, linear_cross_entropy=True)
    with pytest.raises(ValidationError, match="every part is switched off"):
        FusedKernelsOptions(**dict.fromkeys(PARTS, False))
    with pytest.raises(ValidationError, match="both compute the loss"):
        LigerOptions(cross_entropy=True, fused_linear_cross_entropy=True)


def test_the_work_of_the_headline_is_that_of_the_published_figure() -> None:
    asked = resolve(read_draft(find_presets("scenarios")["single-gpu-full"])).scenario
    assert (asked.model.id, asked.model.dtype) == ("llama-2-7b", "bfloat16")
    assert (asked.train.micro_batch_size, asked.train.gradient_accumulation) == (1, 1)
    assert (asked.adapter.use, asked.train.precision) == ("none", "as-is")
    assert not asked.train.gradient_checkpointing
    assert (asked.train.learning_rate, asked.train.max_grad_norm) == (5e-4, None)
    assert (asked.data.sequence_length, asked.data.options["maximum_token"]) == (4096, 100)
    adamw = {"fused": True, "weight_decay": 0.1, "betas": [0.9, 0.95]}
    assert (asked.optimizer.use, asked.optimizer.options) == ("adamw", adamw)


def test_lora_on_8b_is_the_work_of_the_published_figure() -> None:
    asked = resolve(read_draft(find_presets("scenarios")["single-gpu-lora-8b"])).scenario
    assert (asked.model.id, asked.model.dtype) == ("llama-3.1-8b", "bfloat16")
    adapter = asked.adapter.options
    assert (asked.adapter.use, adapter["r"], adapter["alpha"], adapter["dropout"]) == (
        *("lora", 16, 32, 0.1),
    )
    assert {name.removesuffix("_proj") for name in adapter["target_modules"]} == {
        *("q", "k", "v", "o", "gate", "up", "down")
    }
    assert (asked.train.micro_batch_size, asked.train.gradient_accumulation) == (2, 16)
    assert (asked.data.sequence_length, asked.data.options["maximum_token"]) == (4096, 100)
    assert (asked.measure.warmup, asked.measure.steps) == (5, 5)


@pytest.mark.parametrize("name", ["single-gpu-full", "single-gpu-lora", "single-gpu-lora-8b"])
def test_a_compiled_stack_fuses_nothing_inside_the_blocks(name: str) -> None:
    stacks = resolve(read_draft(find_presets("scenarios")[name])).stacks
    fused, compiled = stacks["fused-loss-compiled"].use
    assert (fused.use, compiled.use) == ("fused-kernels", "torch-compile")
    assert FusedKernelsOptions(**fused.options).on() == ("linear_cross_entropy",)


def test_the_two_plugins_exclude_each_other() -> None:
    assert FusedKernels.conflicts == {"liger"}
    assert Liger.conflicts == {"fused-kernels"}


@pytest.mark.usefixtures("fused_loss")
@pytest.mark.parametrize(
    ("part", "wanted", "device", "environment", "library"),
    [
        ("rope", "auto", "cuda", {}, "liger"),
        ("rope", "auto", "cpu", {}, None),
        ("rope", "auto", "cpu", {"TRITON_INTERPRET": "1"}, "liger"),
        ("rope", "torch", "cuda", {}, None),
        ("rms_norm", "auto", "cuda", {}, "liger"),
        ("rms_norm", "auto", "cpu", {}, "torch"),
        ("rms_norm", "torch", "cuda", {}, "torch"),
        ("rms_norm", "liger", "cpu", {}, None),
        ("linear_cross_entropy", "auto", "cpu", {}, "torch"),
        ("cross_entropy", "torch", "cuda", {}, None),
    ],
)
def test_whose_kernel_computes_a_part(
    part: str, wanted: str, device: str, environment: dict[str, str], library: str | None
) -> None:
    found, why = library_of(part, wanted, device, environment)
    assert found == library
    assert bool(why) is (library is None)


def test_attention_of_every_backend_is_counted_among_the_kernels_seen() -> None:
    from accel_bench_fused_kernels.impl.launched_kernels import is_counted

    kernels = (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
        "_rms_norm_forward_kernel",
    )
    assert all(map(is_counted, kernels))
    assert not is_counted("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64")


def test_an_older_torch_has_no_loss_without_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.1+cpu")
    assert library_of("linear_cross_entropy", "torch", "cpu", {}) == (
        None,
        "torch has it from 2.13 on",
    )


@pytest.mark.usefixtures("fused_loss")
@pytest.mark.parametrize(
    ("options", "scenario", "reason"),
    [
        ({"rope": True}, {}, "rope: torch has no kernel for it"),
        ({"kernels": "liger"}, {}, "no part can be had here"),
        ({"rms_norm": True, "kernels": "liger"}, {}, "rms_norm: Liger's kernels need a GPU"),
        ({"rms_norm": True}, {"model": {"id": "santacoder"}}, "GPTBigCodeForCausalLM has none"),
        ({"lora": True}, {}, "lora: the scenario has no adapter"),
        ({"linear_cross_entropy": True, "loss_chunk": 4}, {}, "loss_chunk is Liger's"),
        (
            {"linear_cross_entropy": True},
            PREFERENCES,
            "task dpo computes its loss outside of the model",
        ),
        ({"cross_entropy": True}, PREFERENCES, "task dpo computes its loss outside of the model"),
    ],
)
def test_what_is_asked_for_by_name_and_cannot_be_had_is_a_reason(
    options: dict[str, Any], scenario: dict[str, Any], reason: str
) -> None:
    result = run_plugin("fused-kernels", scenario=scenario, **options)
    assert result.status is Status.SKIPPED
    assert reason in " ".join(result.reasons)


class OfAStranger(Task[Options]):
    """A third party's task with the loss of the model."""


class DividedOtherwise(OfAStranger):
    """A task that declares the model's loss, divided otherwise."""

    def uses_loss_of_model(self) -> bool:
        """Return True: the task uses the model's loss."""
        return True

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss of the model, divided otherwise."""
        return lambda model, inputs, supervised: model(**inputs).loss / 2


@pytest.mark.parametrize("kind", [OfAStranger, DividedOtherwise])
def test_a_task_says_itself_that_the_model_computes_its_loss(kind: type[OfAStranger]) -> None:
    plugin = FusedKernels(FusedKernelsOptions(), "fused-kernels")
    task = kind(Options(), "of-a-stranger")
    assert plugin.libraries("cuda", {}, task)["linear_cross_entropy"] == ("liger", "")


def test_a_loss_outside_of_the_model_leaves_the_other_parts_on(tmp_path: Path) -> None:
    plugin = FusedKernels(FusedKernelsOptions(), "fused-kernels")
    found = plugin.libraries("cuda", {}, make_run(tmp_path, PREFERENCES).task)
    assert found.pop("linear_cross_entropy")[0] is None
    assert {library for library, _ in found.values()} == {"liger"}
    (reason,) = run_plugin("liger", scenario=PREFERENCES, fused_linear_cross_entropy=True).reasons[
        1:
    ]
    assert "fused_linear_cross_entropy: task dpo computes its loss outside of the model" in reason


def test_liger_alone_says_that_it_needs_a_gpu() -> None:
    result = run_plugin("liger")
    assert result.status is Status.SKIPPED
    assert "Liger's kernels need a GPU" in " ".join(result.reasons)


def test_liger_alone_is_refused_where_its_gradients_would_be_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rotary embedding writes over what selective checkpointing keeps."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    stack = {
        "name": "s",
        "uses": ["liger", {"use": "activation-checkpointing", "policy": "selective"}],
    }
    scenario = Scenario.model_validate_json('{"resources": {"device": "cpu"}}')
    experiment = Experiment(
        id="x", scenario=scenario, stack=Stack.model_validate_json(json.dumps(stack)), identity={}
    )

    def reasons(**options: Any) -> list[str]:
        plugin = Liger(LigerOptions(**options), "liger")
        return list(plugin.check_scenario(experiment, MACHINE, None))

    assert "gradients would be wrong" in reasons()[0]
    assert reasons(rope=False) == []


@pytest.mark.usefixtures("fused_loss")
@pytest.mark.release
def test_the_plugin_keeps_the_contract_on_every_architecture_of_the_catalog() -> None:
    check_plugin("fused-kernels", dtypes=["float32", "bfloat16"], scenario=FEW_STEPS)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            {"train": {"gradient_checkpointing": True, "gradient_accumulation": 2}},
            marks=pytest.mark.release,
        ),
        {"engine": {"use": "hf-trainer"}, "train": {"precision": "bf16-autocast"}},
        {"adapter": {"use": "lora", "r": 4, "target_modules": "all-linear", "dropout": 0.1}},
    ],
    ids=str,
)
def test_a_run_is_the_baseline_s_and_not_degraded(scenario: dict[str, Any]) -> None:
    """The kit compares losses with those of the same work without the plugin."""
    work = {**FEW_STEPS, **scenario}
    check_plugin("fused-kernels", scenario=work, archs=["LlamaForCausalLM"], dtypes=["float32"])


@pytest.mark.usefixtures("fused_loss")
def test_flops_and_what_is_recomputed_are_read_as_without_the_plugin() -> None:
    work = {"train": {"gradient_checkpointing": True}}
    result = run_plugin("fused-kernels", scenario=work)
    fused, plain = result.ranks[0], run_plugin("torch", scenario=work).ranks[0]
    assert fused.workload == plain.workload is not None
    assert fused.effective.gradient_flow.modules_without_gradient == ()
    assert fused.effective.linear_kernels == plain.effective.linear_kernels
    # The output projection answers nobody, so what it computes in is not seen: unknown, not wrong.
    assert fused.effective.matmul_dtype is None
    assert result.status is Status.OK


def test_flops_of_a_loss_from_logits_are_read_as_without_fused_adapters() -> None:
    adapter = {"use": "lora", "r": 4, "target_modules": "all-linear"}
    work = {**PREFERENCES, **FEW_STEPS, "adapter": adapter}
    fused, plain = (run_plugin(one, scenario=work).ranks[0] for one in ("fused-kernels", "torch"))
    assert fused.evidence["fused-kernels"]["parts"]["lora"]["gated_mlps"]
    assert fused.workload == plain.workload is not None


@pytest.mark.usefixtures("fused_loss")
def test_evidence_says_what_was_replaced_with_what_and_what_was_not() -> None:
    evidence = run_plugin("fused-kernels").ranks[0].evidence["fused-kernels"]
    assert evidence["architecture"] == "LlamaForCausalLM"
    assert evidence["parts"]["rms_norm"] == {
        "library": "torch",
        "kernel": "torch.nn.functional.rms_norm",
        "replaced": 5,
        "modules": {"LlamaRMSNorm": 5},
    }
    assert evidence["parts"]["linear_cross_entropy"]["replaced"] == 1
    assert set(evidence["left_out"]) == {"lora", "rope", "gated_mlp"}
    assert evidence["liger_kernel"] is None
