"""Reading of activation checkpointing: the recomputed blocks, and recomputed last matmuls."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from accel_bench.effective import CheckpointedBlocks
from accel_bench.modeling.blocks import repeated_blocks
from accel_bench.modeling.checkpointing import CheckpointFunction
from accel_bench.worker.flops.trace import is_recomputed, last_matmul


def read_checkpointing(model: torch.nn.Module) -> CheckpointedBlocks:
    """Return the numbers of recomputed blocks and of all blocks, and the checkpointing policy."""
    blocks = repeated_blocks(model)
    again = [block for block in blocks if is_recomputed(block)]
    functions = (getattr(block, "_gradient_checkpointing_func", None) for block in again)
    policies = (func.policy for func in functions if isinstance(func, CheckpointFunction))
    return CheckpointedBlocks(
        checkpointed=len(again), blocks=len(blocks), policy=next(policies, None)
    )


class Recomputation:
    """Counter of calls of a block's last matmul, which tell whether checkpointing recomputes it.

    Checkpointing ends the second forward as soon as all saved tensors exist again. Torch's own
    operations save their inputs before they start, so the matmul at which it ends is not computed;
    an autograd function saves its tensors when it is done.
    """

    def __init__(self) -> None:
        self._passes = 0
        self._begun = 0
        self._ended = 0
        self._saves_afterwards = False

    def watch(self, model: torch.nn.Module) -> list[Any]:
        """Register the counting hooks on the model; return the hooks' handles."""
        matmul = last_matmul(model)
        if matmul is None:
            return []
        return [
            model.register_forward_hook(self._count_pass),
            matmul.register_forward_pre_hook(self._count_begin),
            matmul.register_forward_hook(self._count_end),
        ]

    @property
    def recomputes(self) -> bool | None:
        """True if the matmul is computed twice in a pass; None if no call of it was seen."""
        if not self._ended:
            return None
        again = self._begun > self._passes and self._saves_afterwards
        return self._ended > self._passes or again

    def _count_pass(self, *_: Any) -> None:
        self._passes += 1

    def _count_begin(self, *_: Any) -> None:
        self._begun += 1

    def _count_end(self, module: Any, inputs: Any, output: Any) -> None:
        self._ended += 1
        self._saves_afterwards |= _is_own_function(output.grad_fn, inputs[0].grad_fn)


def _is_own_function(node: Any, start: Any) -> bool:
    """Return whether a Python autograd function is among the nodes from `node` back to `start`."""
    while node is not None and node is not start:
        if isinstance(node, BackwardCFunction):
            return True
        following = node.next_functions
        node = following[0][0] if following else None
    return False
