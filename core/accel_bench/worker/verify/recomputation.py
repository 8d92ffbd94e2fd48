"""What checkpointing computes again: which blocks, and of them the last product, as was seen."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from accel_bench.worker.flops.trace import decoder_layers, is_recomputed, last_product


def read_checkpointing(model: torch.nn.Module) -> dict[str, Any]:
    """How many decoder blocks are computed again, of how many, and by which policy.

    The policy is what the function that checkpoints says of itself; None for torch's own, which
    computes whole blocks again.
    """
    _, blocks = decoder_layers(model)
    again = [block for block in blocks if is_recomputed(block)]
    functions = (getattr(block, "_gradient_checkpointing_func", None) for block in again)
    said = (getattr(function, "policy", None) for function in functions)
    return {
        "checkpointed": len(again),
        "blocks": len(blocks),
        "policy": next(filter(None, said), None),
    }


class Recomputation:
    """Counts how often the product begins and ends, beside the passes of the model.

    Checkpointing breaks the second computation off when it has again what was kept. Torch's own
    operations keep their inputs before they start, so that a product which is broken off is not
    computed; an autograd function keeps what it needs when it is done.
    """

    def __init__(self) -> None:
        self._passes = 0
        self._begun = 0
        self._ended = 0
        self._keeps_afterwards = False

    def watch(self, model: torch.nn.Module) -> list[Any]:
        """Watch a model; return the handles of the hooks."""
        product = last_product(model)
        if product is None:
            return []
        return [
            model.register_forward_hook(self._count_pass),
            product.register_forward_pre_hook(self._count_begin),
            product.register_forward_hook(self._count_end),
        ]

    @property
    def repeats(self) -> bool | None:
        """Whether the product is computed twice in a pass; None where nothing was seen."""
        if not self._ended:
            return None
        again = self._begun > self._passes and self._keeps_afterwards
        return self._ended > self._passes or again

    def _count_pass(self, *_: Any) -> None:
        self._passes += 1

    def _count_begin(self, *_: Any) -> None:
        self._begun += 1

    def _count_end(self, module: Any, inputs: Any, output: Any) -> None:
        self._ended += 1
        self._keeps_afterwards |= _is_own_function(output.grad_fn, inputs[0].grad_fn)


def _is_own_function(node: Any, start: Any) -> bool:
    """Whether an autograd function of somebody's own lies between an output and its input."""
    while node is not None and node is not start:
        if isinstance(node, BackwardCFunction):
            return True
        following = node.next_functions
        node = following[0][0] if following else None
    return False
