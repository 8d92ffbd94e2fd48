"""Loss of causal language models, as transformers defines it, computed by fused kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, NamedTuple

import torch
import transformers.modeling_outputs
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.utils import can_return_tuple

from accel_bench_fused_kernels.rules import LossRule

IGNORED = -100
"""Default label of ignored tokens."""


class Head(NamedTuple):
    """Output projection in the dtype of its matrix product."""

    weight: torch.Tensor
    """Weight of shape (vocabulary, hidden size)."""

    bias: torch.Tensor | None
    """Bias of shape (vocabulary,)."""


@dataclass(frozen=True)
class LinearLoss:
    """Loss of hidden states by a kernel that fuses the output projection with the loss."""

    head: nn.Linear
    """The output projection."""

    config: Any
    """The model's configuration."""

    rule: LossRule
    """Rule of this architecture for computing logits and loss."""

    kernel: Callable[..., torch.Tensor]
    """Function that returns the loss, given rows of hidden states and their targets."""

    def compute(
        self, hidden: torch.Tensor, target: torch.Tensor, kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return the loss, in float32, of hidden states of shape (samples, length, hidden size).

        `target` has shape (samples x length,). `kwargs` are the arguments of the model's forward,
        of which `num_items_in_batch` and `ignore_index` are used. A divisor of logits is applied to
        hidden states, since logits are linear in them.
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        if self.rule.divisor:
            rows = rows / getattr(self.config, self.rule.divisor)
        items = kwargs.get("num_items_in_batch")
        kind = rows.device.type
        weight, bias = self.head.weight, self.head.bias
        if torch.is_autocast_enabled(kind):
            # What autocast does to operands of a product; it does not see into the kernels.
            dtype = torch.get_autocast_dtype(kind)
            rows, weight = rows.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast(kind, enabled=False):
            total = self.kernel(
                rows,
                Head(weight, bias),
                target.to(rows.device),
                ignore_index=kwargs.get("ignore_index", IGNORED),
                reduction="mean" if items is None else "sum",
                softcap=getattr(self.config, self.rule.softcap) if self.rule.softcap else None,
            )
        return total if items is None else _divided(total, items)


def linear_forward(model: nn.Module, loss: LinearLoss) -> Callable[..., Any]:
    """Return a `forward` for a causal language model, which computes `loss` without logits.

    The model's own forward is called whenever logits are needed: without labels, in evaluation, or
    for some of the tokens. Otherwise `logits` of the returned output is None.
    """
    original: Callable[..., Any] = model.forward
    rule = loss.rule
    output: Any = getattr(transformers.modeling_outputs, rule.output)
    names = [field.name for field in fields(output)]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        labels = kwargs.get("labels")
        if labels is None or args or not self.training or not torch.is_grad_enabled():
            return original(*args, **kwargs)
        if _wants_logits(kwargs.get("logits_to_keep", 0)) or isinstance(loss.head.weight, DTensor):
            return original(*args, **kwargs)
        passed = {k: v for k, v in kwargs.items() if k not in ("labels", "logits_to_keep")}
        if rule.router and passed.get("output_router_logits") is None:
            passed["output_router_logits"] = self.config.output_router_logits
        outputs = self.base_model(**passed)
        total = loss.compute(outputs.last_hidden_state, _targets(labels, kwargs), kwargs)
        values = {name: outputs.get(name) for name in names if name in outputs}
        if rule.router and passed["output_router_logits"]:
            auxiliary = _router_loss(self, rule.router, outputs, kwargs.get("attention_mask"))
            total = total + self.router_aux_loss_coef * auxiliary.to(total.device)
            values["aux_loss"] = auxiliary
        return output(**{**values, "loss": total})

    return wraps(type(model).forward)(can_return_tuple(forward))


def loss_function(
    original: Callable[..., torch.Tensor], kernel: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Return a model's `loss_function` that computes cross-entropy of logits by `kernel`.

    The returned function calls `original` if no gradients are needed.
    """

    @wraps(original)
    def fused(logits: torch.Tensor, labels: Any, vocab_size: int, **kwargs: Any) -> torch.Tensor:
        # The kernel writes gradients, and zeros for ignored tokens, over its float32 input.
        if not (torch.is_grad_enabled() and logits.requires_grad):
            return original(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)
        target = _targets(labels, kwargs).to(logits.device)
        items = kwargs.get("num_items_in_batch")
        total = kernel(
            logits.view(-1, vocab_size),
            target,
            ignore_index=kwargs.get("ignore_index", IGNORED),
            reduction="mean" if items is None else "sum",
        )
        return total if items is None else _divided(total, items)

    return fused


def _targets(labels: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Return each token's next label as a flat tensor; the last label of a row is ignored.

    `kwargs` are the arguments of the loss, of which `shift_labels` replaces `labels` if given.
    """
    shifted = kwargs.get("shift_labels")
    if shifted is None:
        ignored = kwargs.get("ignore_index", IGNORED)
        shifted = nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]
    return shifted.reshape(-1)


def _divided(total: torch.Tensor, items: Any) -> torch.Tensor:
    """Return a sum of losses divided by the number of supervised tokens `items`."""
    return total / (items.to(total.device) if isinstance(items, torch.Tensor) else items)


def _wants_logits(keep: Any) -> bool:
    return isinstance(keep, torch.Tensor) or keep != 0


def _router_loss(model: Any, name: str, outputs: Any, attention_mask: Any) -> torch.Tensor:
    balance = getattr(sys.modules[type(model).__module__], name)
    return balance(
        outputs.router_logits, model.num_experts, model.num_experts_per_tok, attention_mask
    )
