"""Scenarios that `vllm` refuses before the start."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
from accel_bench_vllm import VLLM, VLLMOptions
from pydantic import ValidationError

from accel_bench.errors import ScenarioError
from accel_bench.testing import make_experiment, make_machine

WORK: dict[str, Any] = {"mode": "inference", "model": {"id": "tiny-llama-cpu"}}


def reasons(**work: Any) -> list[str]:
    """Return why the plugin refuses a scenario, with vLLM installed."""
    plugin = VLLM(VLLMOptions(), "vllm")
    found = plugin.check_scenario(make_experiment({**WORK, **work}), make_machine())
    return [reason for reason in found if "is not installed" not in reason]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ({"inference": {"cache": "static"}}, "the cache and a draft model are vLLM's own"),
        ({"inference": {"assistant": "gpt2"}}, "the cache and a draft model are vLLM's own"),
        ({"adapter": {"use": "lora", "r": 4}}, "without an adapter"),
        ({"train": {"precision": "bf16-autocast"}}, "set model.dtype"),
        ({"resources": {"device": "cpu", "devices": 2}}, "on one device here"),
    ],
)
def test_what_vllm_is_not_asked_for_is_refused(work: dict[str, Any], reason: str) -> None:
    assert reasons() == []
    (found,) = reasons(**work)
    assert reason in found


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed in this environment"
)
def test_where_vllm_is_not_installed_the_reason_says_what_to_install() -> None:
    plugin = VLLM(VLLMOptions(), "vllm")
    (reason,) = plugin.check_scenario(make_experiment(WORK), make_machine())
    assert "pip install 'accel-bench-vllm[cuda]'" in reason


def test_arguments_that_the_scenario_decides_are_no_extra() -> None:
    with pytest.raises(ValidationError, match=r"max_num_seqs, model: the scenario or an option"):
        VLLMOptions(extra={"model": "other", "max_num_seqs": 4})
    assert VLLMOptions(extra={"attention_backend": "FLASHINFER"}).extra


@pytest.mark.parametrize(
    "extra",
    [
        {"worker_cls": "evil.Worker"},
        {"worker_extension_cls": "evil:Extension"},
        {"distributed_executor_backend": "evil.Executor"},
        {"download_dir": "/srv"},
        {"compilation_config": '{"backend": "evil.compile"}'},
    ],
)
def test_no_argument_names_code_that_vllm_would_import(extra: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(extra))} is .*not names of code"):
        VLLMOptions(extra=extra)
    assert VLLMOptions(extra={"distributed_executor_backend": "mp", "swap_space": 4.5}).extra


def test_a_cache_of_unknown_size_must_be_given_one() -> None:
    """Else vLLM would take nearly all memory of the GPU."""
    from accel_bench_vllm.impl import _settings
    from transformers import LlamaConfig

    run: Any = SimpleNamespace(scenario=make_experiment(WORK).scenario)
    latent = LlamaConfig(kv_lora_rank=8)
    with pytest.raises(ScenarioError, match=r"set engine\.kv_cache_memory_bytes"):
        _settings(run, VLLMOptions(), latent)
    given = _settings(run, VLLMOptions(kv_cache_memory_bytes=4096), latent)
    assert given["kv_cache_memory_bytes"] == 4096
    assert _settings(run, VLLMOptions(), LlamaConfig())["kv_cache_memory_bytes"] > 0
