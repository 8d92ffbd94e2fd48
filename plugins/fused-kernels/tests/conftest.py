"""Fixtures of this plugin's tests: small models of every architecture, steps, snapshots."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from accel_bench_fused_kernels import FusedKernels, FusedKernelsOptions
from accel_bench_fused_kernels.impl import FusedModel
from torch import nn

VOCABULARY = 160

SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": VOCABULARY,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Configuration sizes that are no powers of two."""

GRANITE = {
    "logits_scaling": 6.0,
    "residual_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.2,
}

EXPERTS = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.1}

BIGCODE = {
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": VOCABULARY,
    "use_cache": False,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "GPTBigCode": BIGCODE,
    "Gemma": SMALL,
    "Gemma2": SMALL,
    "Gemma3": SMALL,
    "Granite": {**SMALL, **GRANITE},
    "GraniteMoe": {**SMALL, **GRANITE, **EXPERTS},
    "Llama": SMALL,
    "Mistral": SMALL,
    "Mixtral": {**SMALL, **EXPERTS},
    "Qwen2": SMALL,
    "Qwen3": SMALL,
}
"""Configurations of architectures, by the prefix of their class's name."""


def build(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A small causal language model in training mode, with the same weights each time."""
    configuration = "Gemma3Text" if family == "Gemma3" else family
    kind = getattr(transformers, f"{configuration}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(
        kind(**{**CONFIGURATIONS[family], **changes})
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                # Else all of them are ones, or zeros, and nobody would miss them.
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).train()


def step(model: Any, length: int = 13, **kwargs: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one batch of two samples whose first labels are ignored."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCABULARY, (2, length), generator=generator)
    labels = tokens.clone()
    labels[0, : length // 2] = -100
    model.zero_grad()
    loss = model(input_ids=tokens, labels=labels, **kwargs).loss
    loss.backward()
    trained = model.named_parameters()
    return loss.item(), {n: p.grad.clone() for n, p in trained if p.grad is not None}


def distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest distance of two sets of gradients, relative to each tensor's norm."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - expected[name]).norm() / (expected[name].norm() + 1e-12))
        for name in expected
    )


def fuse(model: nn.Module, **options: Any) -> FusedModel:
    """Fuse a model as the plugin does on a CPU."""
    plugin = FusedKernels(FusedKernelsOptions(**options), "fused-kernels")
    fused = FusedModel(model, plugin.options, plugin.libraries("cpu", os.environ))
    fused.install()
    return fused


def code_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Return all code that a model runs: modules' attributes, their functions, and torch's."""
    causal = next(m for m in model.modules() if type(m).__name__.endswith("ForCausalLM"))
    modeling = sys.modules[type(causal).__module__]
    classes = [value for value in vars(modeling).values() if isinstance(value, type)]
    owners = {
        **{f"module {name}": module for name, module in model.named_modules()},
        **{f"class {kind.__module__}.{kind.__qualname__}": kind for kind in classes},
        "modeling": modeling,
        "torch.nn.functional": torch.nn.functional,
        "torch.nn.Linear": torch.nn.Linear,
    }
    return {
        (place, name): value
        for place, owner in owners.items()
        for name, value in vars(owner).items()
    }


def differing(before: dict[tuple[str, str], Any], after: dict[tuple[str, str], Any]) -> list[Any]:
    """Return the attributes that are not identical objects."""
    return [
        key for key in {*before, *after} if before.get(key, before) is not after.get(key, after)
    ]


HAS_FUSED_LOSS = hasattr(nn.functional, "linear_cross_entropy")
"""True if torch has the loss without logits on a CPU, as from 2.13 on."""


class Bench:
    """The functions above, for tests."""

    families = tuple(CONFIGURATIONS)
    has_fused_loss = HAS_FUSED_LOSS
    build = staticmethod(build)
    step = staticmethod(step)
    distance = staticmethod(distance)
    code_of: Callable[..., Any] = staticmethod(code_of)
    differing = staticmethod(differing)

    def __init__(self) -> None:
        self._fused: list[FusedModel] = []

    def fuse(self, model: nn.Module, **options: Any) -> FusedModel:
        """Fuse a model until the test ends."""
        # Liger has that loss where Triton interprets its kernels.
        has_loss = HAS_FUSED_LOSS or "TRITON_INTERPRET" in os.environ
        if type(model).__name__ == "GPTBigCodeForCausalLM" and not has_loss:
            pytest.skip("the loss is all that can be fused of it, which this torch does not have")
        self._fused.append(fuse(model, **options))
        return self._fused[-1]

    def close(self) -> None:
        """Undo all fusions, which would affect later tests through modeling modules."""
        for fused in reversed(self._fused):
            fused.undo()


@pytest.fixture
def fused_loss() -> None:
    """Skip a test where this torch has no loss without logits on a CPU."""
    if not HAS_FUSED_LOSS:
        pytest.skip("torch has linear_cross_entropy from 2.13 on")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Bench for one test."""
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, which sums in the same order in every run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
