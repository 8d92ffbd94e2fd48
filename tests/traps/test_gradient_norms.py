"""A cut inside an adapter leaves every module a gradient: only the baseline's norms show it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from analysis_factory import limit

from accel_bench import Run
from accel_bench.analysis.checks import gradients
from accel_bench.worker.verify.gradient_flow import FirstStepProbe

# PEFT asks transformers by a name that is being replaced.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

FACTOR = limit("gradient norms", "rounding")
different_norms = partial(gradients.different_norms, factor=FACTOR, of_expert=FACTOR)

TOKENS = torch.arange(16)[None]


def first_norms(run: Run, cut: bool) -> dict[str, float | None]:
    """Norms of the first step of adapters whose second matrix does not start at zero."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model: Any = get_peft_model(run.model, config)
    for name, module in model.named_modules():
        if cut and name.endswith("0.mlp.down_proj.lora_A.default"):
            module.register_forward_hook(lambda module, inputs, output: output.detach())
    run.model = run.unwrapped_model = model
    run.optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    probe = FirstStepProbe(run)
    try:
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        run.optimizer.step()
    finally:
        probe.remove()
    assert probe.flow.modules_without_gradient == ()
    norms: dict[str, float | None] = probe.flow.gradient_norms
    return norms


def test_a_cut_between_the_matrices_of_an_adapter_shows_beside_the_baseline(
    llama_run: Callable[..., Run],
) -> None:
    baseline = first_norms(llama_run(), cut=False)
    stack = first_norms(llama_run(), cut=True)
    ((tensor, norms),) = different_norms(baseline, stack).items()
    assert tensor.endswith("layers.0.mlp.down_proj.lora_A.default.weight")
    assert norms[0] == 0.0 < norms[1]
    assert different_norms(baseline, first_norms(llama_run(), cut=False)) == {}
