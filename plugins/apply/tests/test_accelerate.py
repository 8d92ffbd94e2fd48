"""What a script gets from `accelerate`, what it must do itself, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import accel_bench
from accel_bench.documents.presets import find_presets
from accel_bench.errors import (
    AccelBenchError,
    HookError,
    InvalidRunError,
    PluginError,
    ScenarioError,
)
from accel_bench.plugins.registry import extras, missing_extra

from .scripts import small_llama, tiny

REFUSED = {
    "activation-offload": "does not work with device cpu; it works with cuda",
    "attention-cudnn": "cudnn is a kernel of GPUs",
    "expert-parallel": "the model has no experts that expert could divide; set expert to 1",
    "expert-parallel-dispatch": "the model has no experts",
    "hsdp": "cannot be filled up to 1 device. This script is one process: `torchrun` starts",
    "moe-batched": "does not support LlamaForCausalLM",
    "moe-eager": "does not support LlamaForCausalLM",
    "moe-grouped": "does not support LlamaForCausalLM",
    "torch-compile-cudagraphs": "CUDA graphs need a GPU",
    "torch-compile-thunder": "pip install lightning-thunder",
    # Of distributions that `make quantized` installs.
    **dict.fromkeys(
        "bnb-baseline bnb-baseline-autocast float8-weights fp4 int8 int8-torchao intx4-torchao "
        "nf4 nf4-double nf4-torchao".split(),
        "loads the model itself, since it changes the weights on the way: give the model's local",
    ),
    **dict.fromkeys(
        ("gptq", "gptq-8bit", "gptq-act-order", "gptq-calibrated"),
        "does not work with model.dtype float32; it works with bfloat16, float16",
    ),
    **dict.fromkeys(
        ("zero-1", "zero-2", "zero-3", "zero-3-offload-all", "zero-3-offload-optimizer"),
        "drives the optimizer steps itself, and here the script does",
    ),
    "float8-training": "float8 training needs a GPU",
    "fused-lora": "the scenario has no adapter",
    "liger": "Liger's kernels need a GPU",
}
"""Stacks that a CPU, one process, or a module of float32 without an adapter rules out."""


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Fail a test that leaves its stack active."""
    yield
    accel_bench.accelerate(small_llama()).close()


@pytest.mark.parametrize("stack", sorted(find_presets("stacks")))
@pytest.mark.filterwarnings("ignore:stack .* adapter. lora added to every stack")
def test_a_named_stack_accelerates_a_model_or_says_why_not(stack: str) -> None:
    if stack in REFUSED:
        with pytest.raises(PluginError) as refused:
            accel_bench.accelerate(small_llama(), stack)
        assert REFUSED[stack] in str(refused.value)
    else:
        with accel_bench.accelerate(small_llama(), stack) as accelerated:
            assert accelerated.stack == stack
            assert accelerated.model is not None


def named(accelerated: Any) -> list[str]:
    """Return the parts that a script must do, as they are printed."""
    return [str(part) for part in accelerated.outside]


def test_what_a_script_must_do_is_named_with_its_value() -> None:
    changed = {"train.precision": "bf16-autocast", "train.micro_batch_size": 4}
    stack = {"set": {**changed, "data.sequence_length": 64, "optimizer.fused": True}}
    with accel_bench.accelerate(small_llama(), {**stack, "use": ["padding-free"]}) as accelerated:
        assert [line.partition(":")[0] for line in named(accelerated)] == [
            "batches (padding-free)",
            "train.precision = bf16-autocast (the stack)",
            "train.micro_batch_size = 4 (the stack)",
            "data.sequence_length = 64 (the stack)",
            "optimizer.fused = True (the stack)",
        ]
        with accelerated.autocast():
            assert torch.is_autocast_enabled("cpu")


@pytest.mark.box
def test_settings_of_a_scenario_are_named_too_and_others_are_not() -> None:
    with accel_bench.accelerate(small_llama(), "other", scenario=tiny({"other": []})) as one:
        assert [part.name for part in one.outside] == [
            "train.micro_batch_size",
            "train.learning_rate",
            "data.sequence_length",
            "resources.threads",
        ]
        assert {part.by for part in one.outside} == {"the scenario"}
    with accel_bench.accelerate(small_llama(), ["activation-checkpointing"]) as one:
        assert named(one) == []


def test_closing_undoes_what_the_plugins_have_changed() -> None:
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    model = small_llama()
    model.config.use_cache = True
    with accel_bench.accelerate(model, "padding-free") as accelerated:
        assert ALL_ATTENTION_FUNCTIONS._local_mapping != before
        assert not model.config.use_cache
    assert ALL_ATTENTION_FUNCTIONS._local_mapping == before
    assert accelerated.closed and model.config.use_cache
    accelerated.close()  # as of a file, a second call does nothing
    for use in (lambda: accelerated.model, accelerated.optimizer, accelerated.check):
        with pytest.raises(AccelBenchError, match="'padding-free' is closed; call accelerate"):
            use()


@pytest.mark.parametrize("raised", [False, True])
def test_checkpointing_and_the_precision_of_matmuls_are_put_back(raised: bool) -> None:
    changed = {"train.gradient_checkpointing": True, "train.matmul_precision": "high"}
    model = small_llama()
    try:
        with accel_bench.accelerate(model, {"set": changed}) as accelerated:
            assert accelerated.effective.gradient_checkpointing
            assert torch.get_float32_matmul_precision() == "high"
            assert 1 / (1 - raised)
    except ZeroDivisionError:
        assert raised
    assert not any(layer.gradient_checkpointing for layer in model.model.layers)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_second_stack_waits_for_the_end_of_the_first() -> None:
    with accel_bench.accelerate(small_llama(), "padding-free"):
        with pytest.raises(AccelBenchError, match="'padding-free' is active in this process"):
            accel_bench.accelerate(small_llama())


def test_what_a_failing_plugin_has_changed_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)

    def fail(*_: object) -> None:
        raise RuntimeError("no isolation")

    monkeypatch.setattr("accel_bench_padding_free.impl.isolation.prove_isolation", fail)
    with pytest.raises(HookError, match=r"'padding-free' .* failed in accelerate_model: .*no isol"):
        accel_bench.accelerate(small_llama(), "padding-free")
    assert ALL_ATTENTION_FUNCTIONS._local_mapping == before


@pytest.mark.parametrize("failing", ["lora_impl._draw_matrices", "lora_impl.lora_evidence"])
def test_the_adapter_of_a_call_that_fails_is_removed(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no matrices")

    model = small_llama()
    model.lm_head.weight.requires_grad_(False)
    names, modules = set(model.state_dict()), list(model.modules())
    trained = [weight.requires_grad for weight in model.parameters()]
    with monkeypatch.context() as patched, pytest.raises(HookError, match="no matrices"):
        patched.setattr(f"accel_bench_huggingface.{failing}", fail)
        accel_bench.accelerate(model, overrides={"adapter.use": "lora"})
    assert set(model.state_dict()) == names and list(model.modules()) == modules
    assert [weight.requires_grad for weight in model.parameters()] == trained
    accel_bench.accelerate(model, overrides={"adapter.use": "lora"}).close()


class Plain(nn.Module):
    """A module that is none of transformers'."""

    def __init__(self, parts: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(parts))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values).tanh()
        return values


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        ("paddingfree", "no stack or plugin is called 'paddingfree'; did you mean 'padding-free'?"),
        ("padding-free+exampel", "no plugin is called 'exampel'; did you mean 'example'?"),
        ([{"use": "padding-free", "sampler": "sane"}], "sampler"),
        ({"use": ["torch-compile", "torch-compile"]}, "uses 'torch-compile' twice"),
        ("padding-free", "does not support Plain; it supports"),
        pytest.param(
            ["hf-trainer"], "hf-trainer drives the optimizer steps itself", marks=pytest.mark.box
        ),
        (7, "a stack is a name, plugins joined by"),
    ],
)
def test_a_stack_that_cannot_be_is_refused(stack: Any, reason: str) -> None:
    with pytest.raises(AccelBenchError) as refused:
        accel_bench.accelerate(Plain(), stack)
    assert reason in str(refused.value)


def test_a_plugin_that_is_not_installed_comes_with_its_command() -> None:
    absent = next((name for name in extras() if missing_extra(name)), None)
    if absent is None:
        pytest.skip("every plugin of an extra is installed here")
    for stack in (absent, [absent], f"padding-free+{absent}"):
        with pytest.raises(PluginError, match=f"{absent!r} is not installed; pip install"):
            accel_bench.accelerate(small_llama(), stack)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (3, "model is a torch.nn.Module, a local directory or hub id"),
        (nn.Identity(), "the model Identity has no weights to train"),
        ("tiny-llama-cpu", "the catalog, which holds no weights"),
        ("/nowhere", "there is no such directory"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: Any, reason: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        accel_bench.accelerate(model)
    assert reason in str(refused.value)


def test_an_adapted_model_is_refused_and_an_adapter_that_is_added_is_a_warning() -> None:
    with accel_bench.accelerate(small_llama(), overrides={"adapter.use": "lora"}) as accelerated:
        adapted = accelerated.model
        assert type(adapted).__name__ == "PeftModelForCausalLM"
    with pytest.raises(ScenarioError, match="has an adapter already"):
        accel_bench.accelerate(adapted)


def test_a_scenario_for_several_devices_says_how_to_start_the_script() -> None:
    scenario = tiny({}, resources={"devices": 2})
    with pytest.raises(
        ScenarioError, match=r"trains on 2 devices, .* `torchrun --nproc-per-node 2"
    ):
        accel_bench.accelerate(small_llama(), scenario=scenario)


def step(accelerated: Any, inputs: dict[str, Any]) -> None:
    """Take an optimizer step on a micro-batch."""
    optimizer = accelerated.optimizer()
    accelerated.model(**inputs).loss.backward()
    optimizer.step()


def test_what_took_effect_is_read_back_after_a_step() -> None:
    with accel_bench.accelerate(small_llama(), "padding-free") as accelerated:
        with pytest.raises(InvalidRunError, match="no optimizer took a step"):
            accelerated.check()
    with accel_bench.accelerate(small_llama(), "padding-free") as accelerated:
        assert accelerated.effective.padding_free is None
        step(accelerated, accelerated.collate([[1, 2, 3], [4, 5, 6, 7]]))
        assert accelerated.check().padding_free
        assert accelerated.effective.optimizer == "AdamW"
        assert accelerated.evidence()["padding-free"]["attention_calls"]


def test_a_module_without_gradient_is_found() -> None:
    model = small_llama()
    with accel_bench.accelerate(model) as accelerated:
        original = model.model.layers[0].mlp.forward
        model.model.layers[0].mlp.forward = lambda hidden: original(hidden).detach()
        with pytest.raises(InvalidRunError, match="the gradient is cut: 4 trained modules"):
            step(accelerated, accelerated.collate([[1, 2, 3, 4]]))


def test_a_micro_batch_keeps_the_labels_and_masks_of_its_samples() -> None:
    ids = [3, 4, 5, 6]
    with accel_bench.accelerate(small_llama(), "padding-free") as accelerated:
        for sample, learned in (
            ({"input_ids": ids}, [4, 5, 6]),
            ({"input_ids": ids, "labels": [-100, -100, 5, 6]}, [5, 6]),
            ({"input_ids": ids, "completion_mask": [0, 0, 0, 1]}, [6]),
            ({"input_ids": [*ids, 0], "attention_mask": [1, 1, 1, 1, 0]}, [4, 5, 6]),
        ):
            inputs = accelerated.collate([sample])
            assert inputs["input_ids"].tolist() == [ids]
            assert inputs["labels"][inputs["labels"] != -100].tolist() == learned
        with pytest.raises(ScenarioError, match=r"samples\[0\] has pixel_values, which"):
            accelerated.collate([{"input_ids": ids, "pixel_values": [1]}])
        with pytest.raises(ScenarioError, match=r"labels of samples\[0\] are other tokens"):
            accelerated.collate([{"input_ids": ids, "labels": [1, 1, 1, 1]}])


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ({"input_ids": [[1, 2, 3]]}, "samples are a list .* and no dict: give lists of token ids"),
        ("abc", "samples are a list .* and no str"),
        ([1, 2, 3], r"samples\[0\] has input_ids of shape \(\): give a list of token ids"),
        ([[1, 2], [[1, 2, 3]]], r"samples\[1\] has input_ids of shape \(1, 3\): give a list"),
        ([[1, 2], [[1], [2, 3]]], r"samples\[1\] is no list of token ids"),
        ([[1, 2], []], r"samples\[1\] has no tokens: leave it out"),
        ([{"input_ids": [1, 2], "attention_mask": [0, 0]}], r"samples\[0\] has no tokens"),
        ([[1, 2], {"labels": [1, 2]}], r"samples\[1\] has no input_ids"),
        ([[1, 2], [1.5, 2.5]], r"samples\[1\] has token ids of type float64: give integers"),
        (["ab"], r"samples\[0\] has input_ids of shape"),
        (
            [[1, 2], {"input_ids": [1, 2, 3], "labels": [1, 2]}],
            r"samples\[1\] has labels of shape \(2,\) beside input_ids of shape \(3,\)",
        ),
        ([[1, 2], [3, -1]], r"samples\[1\] has the token id -1, and the model's are 0 to 63"),
        ([[1, 2], [3], [64, 1]], r"samples\[2\] has the token id 64, .*: use the model's own"),
    ],
)
def test_samples_that_are_none_are_refused_by_number(samples: Any, reason: str) -> None:
    with accel_bench.accelerate(small_llama()) as accelerated:
        with pytest.raises(ScenarioError, match=reason):
            accelerated.collate(samples)


@pytest.mark.parametrize("stack", [None, "padding-free"])
def test_a_micro_batch_has_its_samples_in_the_given_order(stack: str | None) -> None:
    samples = [[number] * (2 + number % 3) for number in range(1, 9)]
    labels = [{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in samples]
    with accel_bench.accelerate(small_llama(), stack) as accelerated:
        inputs = accelerated.collate(labels)
    padded = inputs.get("attention_mask") if stack is None else None
    real = slice(None) if padded is None else padded.bool()
    assert inputs["input_ids"][real].flatten().tolist() == [
        token for ids in samples for token in ids
    ]
    learned = [token for ids in samples for token in ids[1:]]
    assert inputs["labels"][inputs["labels"] != -100].tolist() == learned


def test_a_script_that_names_nothing_else_imports_no_torch(tmp_path: Path) -> None:
    program = "import sys, accel_bench; accel_bench.accelerate; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
