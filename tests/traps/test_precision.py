"""Precision that is asked for and not computed in, and steps that a scaler skips."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_torch.engine_impl import TorchEngine

from accel_bench import Run
from accel_bench.errors import InvalidRunError, ScenarioError
from accel_bench.worker.verify.effective import differences, read_effective
from accel_bench.worker.verify.gradient_flow import FirstStepProbe

TOKENS = torch.arange(16)[None]


def loss_of(model: Any) -> torch.Tensor:
    """The model's own loss on a fixed row."""
    loss: torch.Tensor = model(input_ids=TOKENS, labels=TOKENS).loss
    return loss


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # What the Trainer says of itself is not ours to mend.
def test_a_trainer_that_ignores_fp16_on_a_cpu_is_found_by_the_dtype_of_its_matmuls(
    llama_run: Callable[..., Run], tmp_path: Path
) -> None:
    from transformers import Trainer, TrainingArguments

    run = llama_run(train={"precision": "fp16-autocast"})
    arguments = TrainingArguments(
        str(tmp_path),
        fp16=True,
        use_cpu=True,
        max_steps=1,
        per_device_train_batch_size=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": TOKENS[0], "labels": TOKENS[0]}] * 2
    probe = FirstStepProbe(run)
    Trainer(run.model, arguments, train_dataset=rows).train()
    probe.remove()
    degraded, _ = differences(run, read_effective(run, probe))
    assert "matmuls compute in float32, the scenario says fp16-autocast" in degraded


def test_our_loop_refuses_fp16_on_a_cpu(llama_run: Callable[..., Run]) -> None:
    run = llama_run(train={"precision": "fp16-autocast"})
    with pytest.raises(ScenarioError, match="needs a CUDA device"):
        TorchEngine(run)


def test_autocast_that_is_on_is_no_difference(llama_run: Callable[..., Run]) -> None:
    run = llama_run(train={"precision": "bf16-autocast"})
    probe = FirstStepProbe(run)
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(run.model).backward()
    run.optimizer.step()
    assert probe.matmul_dtype == "bfloat16"
    assert differences(run, read_effective(run, probe)) == ([], [])


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_the_probe_waits_for_the_first_step_that_a_scaler_does_not_skip(
    fused: bool, llama_run: Callable[..., Run]
) -> None:
    """A fused optimizer is called all the same, and skips the step itself."""
    run = llama_run()
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38, backoff_factor=1e-37)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    probe = FirstStepProbe(run)
    for number in range(2):
        scaler.scale(loss_of(run.model) * 100).backward()
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()
        if number == 0:
            same = [torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True)]
            assert all(same), "the scaler did not skip this step"
            assert probe.flow is None
    probe.check()
    norms = probe.flow.gradient_norms
    assert all(0 < norm < 1e4 for norm in norms.values()), "the scale is not taken out"
    assert probe.flow.parameters_changed is True


def test_a_run_whose_scaler_skips_every_step_is_invalid(llama_run: Callable[..., Run]) -> None:
    run = llama_run()
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38, backoff_factor=1.0 - 1e-9)
    probe = FirstStepProbe(run)
    for _ in range(2):
        scaler.scale(loss_of(run.model) * 100).backward()
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()
    probe.remove()
    with pytest.raises(InvalidRunError, match="no optimizer took a step"):
        probe.check()
