"""The stack plugin `attention`: sdpa's backends during a run, restored afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_bench_attention.attention import AttentionBackends, AttentionOptions, enable
from pydantic import ValidationError
from torch.nn.functional import scaled_dot_product_attention

from accel_bench import Run
from accel_bench.modeling.attention_kernels import attention_kernels
from accel_bench.testing import check_plugin, make_machine, run_plugin
from accel_bench.worker.verify.kernels import enabled_attention_backends

MakeRun = Callable[..., Run]
HALF = {"model": {"dtype": "bfloat16"}, "resources": {"device": "cuda"}}


def plugin(*backends: str) -> AttentionBackends:
    options = AttentionOptions.model_validate_json(json.dumps({"backends": backends}))
    return AttentionBackends(options, "attention")


def reasons(run: Run, *backends: str, capability: tuple[int, int] = (9, 0)) -> list[str]:
    here = make_machine(capability) if run.scenario.resources.device == "cuda" else make_machine()
    return list(plugin(*backends).check_scenario(run.experiment, here))


def kernels() -> list[str]:
    query = torch.zeros(1, 2, 8, 4, requires_grad=True)
    return sorted(attention_kernels(scaled_dot_product_attention(query, query, query)))


def test_it_keeps_the_contract() -> None:
    check_plugin("attention", options={"backends": ["math"]}, archs=[], dtypes=["bfloat16"])


def test_evidence_and_what_was_effective_name_the_kernel_that_ran() -> None:
    rank = run_plugin("attention", backends=["math"]).ranks[0]
    assert rank.evidence["attention"] == {
        "backends": ["math"],
        "kernel_of_one_call": ["SafeSoftmax"],
    }
    assert rank.effective.attention_backends == ("math",)
    assert set(rank.effective.attention_kernels) == {"SafeSoftmax"}
    assert rank.effective.attention == "sdpa"


def test_only_what_is_named_is_enabled_in_its_order_and_all_is_undone() -> None:
    before = enabled_attention_backends()
    first = enable(["efficient", "flash"])
    assert enabled_attention_backends() == ["efficient", "flash"]
    first()
    assert enabled_attention_backends() == before
    second = enable(["cudnn", "math", "flash", "efficient"])
    assert enabled_attention_backends() == ["cudnn", "math", "flash", "efficient"]
    second()
    assert enabled_attention_backends() == before


def test_the_kernel_that_runs_is_the_one_that_is_left() -> None:
    assert kernels() == ["ScaledDotProductFlashAttentionForCpu"]
    only = enable(["math"])
    assert kernels() == ["SafeSoftmax"]
    only()
    assert kernels() == ["ScaledDotProductFlashAttentionForCpu"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["cudnn", "flash", "efficient"])
def test_on_a_gpu_the_first_that_is_named_runs(name: str) -> None:
    chosen = enable([name, *({"cudnn", "flash", "efficient"} - {name})])
    query = torch.zeros(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    output = scaled_dot_product_attention(query, query, query, is_causal=True)
    chosen()
    assert [kernel for kernel in attention_kernels(output) if name in kernel.lower()]


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_a_kernel_of_gpus_is_refused_on_a_cpu(make_run: MakeRun, backend: str) -> None:
    run = make_run(resources={"device": "cpu"})
    assert "a kernel of GPUs" in reasons(run, backend, "math")[0]
    assert reasons(run, "flash", "math") == reasons(run, "math") == []


def test_an_order_that_a_cpu_does_not_take_is_refused(make_run: MakeRun) -> None:
    (reason,) = reasons(make_run(resources={"device": "cpu"}), "math", "flash")
    assert "torch tries flash before math" in reason


@pytest.mark.parametrize("backend", ["flash", "cudnn"])
def test_a_kernel_that_does_not_compute_in_the_dtype_is_refused(
    make_run: MakeRun, backend: str
) -> None:
    single = {"resources": {"device": "cuda"}}
    assert "is in float32" in reasons(make_run(**single), backend)[0]
    assert reasons(make_run(**single, train={"precision": "bf16-autocast"}), backend) == []
    assert reasons(make_run(**HALF), backend) == []
    assert reasons(make_run(**single), "efficient", "math") == []


def test_a_kernel_that_a_gpu_is_too_old_for_is_refused(make_run: MakeRun) -> None:
    run = make_run(**HALF)
    assert "needs compute capability 8.0" in reasons(run, "cudnn", capability=(7, 5))[0]
    assert reasons(run, "efficient", "math", capability=(7, 5)) == []


@pytest.mark.parametrize(
    "model, without",
    [("resnet-50", True), ("tiny-clip-cpu", False), ("distilgpt2", False), ("t5-small", False)],
)
def test_a_model_without_attention_has_nothing_to_order(
    make_run: MakeRun, model: str, without: bool
) -> None:
    found = reasons(make_run(model={"id": model}, resources={"device": "cpu"}), "math")
    assert found == ([f"{model} has no attention"] if without else [])


def test_another_implementation_than_sdpa_has_nothing_to_order(make_run: MakeRun) -> None:
    run = make_run(model={"attention": "eager"}, resources={"device": "cpu"})
    (reason,) = reasons(run, "math")
    assert "model.attention is eager" in reason


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "backends"),
        ({"backends": []}, "at least 1"),
        ({"backends": ["math", "math"]}, "named twice"),
        ({"backends": ["xformers"]}, "flash"),
    ],
)
def test_options_that_name_nothing_or_the_unknown_are_refused(
    given: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ValidationError, match=wrong):
        AttentionOptions.model_validate_json(json.dumps(given))
