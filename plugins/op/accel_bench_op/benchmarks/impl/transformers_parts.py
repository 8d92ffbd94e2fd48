"""Blocks and models of transformers with random weights, from configurations."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_map_only

from accel_bench.modeling.blocks import decoder_blocks
from accel_bench.modeling.random_weights import random_model
from accel_bench_op.benchmarks.shapes import Shape

FEW_TOKENS = 64
"""Vocabulary size of a model that is built only to take one block out of it."""

SEED = 0


class LossOnlyModel(nn.Module):
    """A causal language model that returns its loss only."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each token (batch, tokens) from the preceding ones."""
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


class BlockModule(nn.Module):
    """Wrapper of a decoder block or its attention that returns the hidden states alone."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, hidden: torch.Tensor, *turns: torch.Tensor) -> torch.Tensor:
        """Return hidden states (batch, tokens, hidden) after the block.

        `turns` are cosines and sines of rotary embedding, or nothing if the block takes none.
        """
        rotary = {"position_embeddings": turns, "attention_mask": None} if turns else {}
        output: Any = self.part(hidden, **rotary)
        return output[0] if isinstance(output, tuple) else output


def model(shape: Shape, device: str, dtype: str) -> Any:
    """Return a causal language model of a shape with random weights, in training mode."""
    kind = getattr(transformers, shape.architecture)
    config = kind.config_class(**shape.config)
    network, _ = random_model(config, getattr(torch, dtype), device, SEED)
    return network.train()


def block(shape: Shape, device: str, dtype: str) -> nn.Module:
    """Return one decoder block of a shape with random weights."""
    few = {"n_layer": 1, "num_hidden_layers": 1, "bos_token_id": 1, "eos_token_id": 1}
    changes = {key: few[key] for key in few if key in shape.config} | {"vocab_size": FEW_TOKENS}
    alone = replace(shape, changes={**shape.changes, **changes})
    _, blocks = decoder_blocks(model(alone, device, dtype))
    return blocks[0]


def attention(shape: Shape, device: str, dtype: str) -> nn.Module:
    """Return the attention module of one decoder block, with its projections."""
    whole = block(shape, device, dtype)
    return getattr(whole, "self_attn", None) or whole.attn


def experts(shape: Shape, device: str, dtype: str) -> nn.Module:
    """Return a decoder block's module of experts, with the implementation `grouped_mm`."""
    (module,) = experts_of(block(shape, device, dtype))
    multiply_by("grouped_mm", module)
    return module


def experts_of(module: nn.Module) -> list[Any]:
    """Return the submodules of experts whose implementation transformers can switch."""
    return [part for part in module.modules() if hasattr(part, "gate_up_proj")]


def multiply_by(implementation: str, module: nn.Module) -> None:
    """Set the implementation of a module's experts: `grouped_mm`, or the loop `eager`."""
    for part in experts_of(module):
        part.config._experts_implementation = implementation


def in_float64(module: nn.Module) -> nn.Module:
    """Return a float64 copy of a module, whose experts use a loop: `grouped_mm` lacks float64."""
    doubled = copy.deepcopy(module).double()
    multiply_by("eager", doubled)
    return doubled


def in_float64_with_experts_of(module: nn.Module) -> nn.Module | None:
    """Return a float64 copy of a module with the expert choices of the module's own routers.

    In each call, the routers of `module` itself run first and choose. The result is None for a
    module without routers.
    """
    if not routers_of(module):
        return None
    doubled, chosen = in_float64(module), list[torch.Tensor]()

    def choose(_: Any, args: Any, kwargs: Any) -> None:
        dtype = next(module.parameters()).dtype
        args, kwargs = tree_map_only(torch.Tensor, partial(_as_dtype, dtype=dtype), (args, kwargs))
        chosen[:] = chosen_experts(module, args, kwargs)

    def replaced(router: Any, args: Any, out: Any) -> Any:
        logits, scores, _ = out
        experts = chosen.pop(0)
        weights = torch.softmax(logits.float(), -1).gather(-1, experts)
        if getattr(router, "norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(scores.dtype), experts

    doubled.register_forward_pre_hook(choose, with_kwargs=True)
    for router in routers_of(doubled):
        router.register_forward_hook(replaced)
    return doubled


def routers_of(module: nn.Module) -> list[nn.Module]:
    """Return the routers of a module, in the order of the layers."""
    return [part for part in module.modules() if type(part).__name__.endswith("TopKRouter")]


def chosen_experts(module: nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return each router's expert indices (tokens, experts per token) in a call of the module."""
    chosen: list[torch.Tensor] = []

    def note(_: Any, args: Any, out: Any) -> None:
        chosen.append(out[2])

    hooks = [router.register_forward_hook(note) for router in routers_of(module)]
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return chosen


def _as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
