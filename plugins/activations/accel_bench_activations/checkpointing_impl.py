"""Activation checkpointing of a model's blocks, with counts of kept and of recomputed outputs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

from accel_bench.errors import ScenarioError
from accel_bench.modeling.checkpointing import (
    CheckpointFunction,
    disable_gradient_checkpointing,
    enable_gradient_checkpointing,
)
from accel_bench_activations.selective_policy_impl import SelectivePolicy

if TYPE_CHECKING:
    from accel_bench_activations.activations import CheckpointingOptions


class CountingCheckpoint(CheckpointFunction):
    """Checkpoint function for blocks: it calls torch's checkpoint, and counts calls in the warm-up.

    `policy` names the checkpointing policy. `keep` names the operations whose outputs are kept; if
    it is empty, all outputs are recomputed.
    """

    def __init__(self, policy: str, keep: tuple[str, ...] = ()) -> None:
        self.policy = policy
        self.operations = SelectivePolicy(keep) if keep else None
        self.passes = 0
        self.computed = 0
        self._arguments: dict[str, Any] = {"use_reentrant": False}
        if self.operations is not None:
            self._arguments["context_fn"] = functools.partial(
                create_selective_checkpoint_contexts, self.operations
            )

    def __call__(self, function: Any, *args: Any) -> Any:
        """Call a block's forward, `function`, under torch's checkpoint.

        Counts the call unless it is compiled.
        """
        if torch.compiler.is_compiling():
            return checkpoint(function, *args, **self._arguments)
        self.passes += 1
        return checkpoint(functools.partial(self._count, function), *args, **self._arguments)

    def plain(self) -> Any:
        """Stop counting operations; return torch's checkpoint function with the same arguments."""
        if self.operations is not None:
            self.operations.counting = False
        return functools.partial(checkpoint, **self._arguments)

    def recomputes(self, matmuls: int) -> tuple[bool | None, bool | None]:
        """Return whether a block recomputes its matmuls, and whether it recomputes its attention.

        `matmuls` is the number of matmuls in one block's forward pass. Each of the two is True if
        all are recomputed, False if none is, and None if the counts do not tell.
        """
        if self.operations is None:
            return True, True
        return self.operations.recomputes(matmuls, self.passes)

    def _count(self, function: Any, *args: Any) -> Any:
        self.computed += 1
        return function(*args)


class Checkpointing:
    """Activation checkpointing of the blocks of one model, until `undo` restores the model."""

    def __init__(self, model: nn.Module, options: CheckpointingOptions) -> None:
        """Choose the blocks by `options`, and enable their checkpointing.

        Raises ScenarioError if the model has no block that transformers can checkpoint by itself.
        """
        self._model: Any = model
        self._options = options
        self._blocks = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not self._blocks:
            raise ScenarioError(
                f"activation-checkpointing: {type(model).__name__} has no block that transformers "
                "can compute again by itself; take the plugin out of the stack"
            )
        every = options.every if options.policy == "every" else 1
        self._chosen = self._blocks[::every]
        keep = options.keep if options.policy == "selective" else ()
        word = f"every {every}" if every > 1 else options.policy
        self._checkpoint = CountingCheckpoint(word, keep)
        # The model's own switch does what else there is to do, such as for adapters.
        enable_gradient_checkpointing(model)
        for block in self._blocks:
            block.gradient_checkpointing = False
        for block in self._chosen:
            block.gradient_checkpointing = True
            block._gradient_checkpointing_func = self._checkpoint

    def stop_counting(self) -> None:
        """Replace the counting checkpoint function of each block by torch's own function.

        Compiled blocks keep the counting function: another function would cause a recompilation.
        """
        if self._checkpoint.passes:
            plain = self._checkpoint.plain()
            for block in self._chosen:
                block._gradient_checkpointing_func = plain

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: the policy, numbers of blocks, and of their calls in the warm-up.

        The numbers of calls are null for compiled blocks.
        """
        counted, seen = self._checkpoint, bool(self._checkpoint.passes)
        operations = counted.operations
        return {
            "policy": self._options.policy,
            "blocks": len(self._blocks),
            "checkpointed_blocks": len(self._chosen),
            "forwards": counted.passes if seen else None,
            "recomputations": counted.computed - counted.passes if seen else None,
            **({} if operations is None else operations.evidence(counted.passes)),
        }

    def undo(self) -> None:
        """Restore the model's blocks to their state without checkpointing."""
        disable_gradient_checkpointing(self._model)
        for block in self._chosen:
            vars(block).pop("_gradient_checkpointing_func", None)
