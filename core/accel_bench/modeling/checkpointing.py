"""Switch a model's activation checkpointing, and declare what core reads of a function for it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from accel_bench.errors import ScenarioError

CHECKPOINTING_WORDS = ("activation", "gradient")
"""What a model's switch for checkpointing is named by: transformers renamed it in 5.23."""

RECOMPUTES_LAST_MATMUL = "recomputes_last_matmul"
"""Attribute that a module sets to False whose forward has saved all that it needs when its last
matmul begins: checkpointing ends the second forward there, so that the matmul is not computed
again. Core counts FLOPs by it."""


@runtime_checkable
class CheckpointFunction(Protocol):
    """What a decoder block calls to be checkpointed, where that is not torch's own `checkpoint`.

    A plugin puts it into the block's `_gradient_checkpointing_func`. Core reads it after the
    warm-up, to count what is computed again; of torch's own it knows that this is everything.
    """

    policy: str
    """Which blocks, or operations, are computed again, such as `selective`; it is stored with the
    effective configuration."""

    def __call__(self, function: Any, *args: Any) -> Any:
        """Call a block's forward, `function`, so that it is computed again in the backward pass."""

    def recomputes(self, matmuls: int) -> tuple[bool | None, bool | None]:
        """Return whether a block computes its matmuls again, and its attention.

        `matmuls` is how many weight matrices the block has. None where only some are computed
        again, or where it is not known.
        """


def enable_gradient_checkpointing(model: Any) -> None:
    """Have the model recompute its activations. Raises ScenarioError when it cannot."""
    word = _word_for_checkpointing(model)
    enable = getattr(model, f"{word}_checkpointing_enable")
    try:
        enable(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})
    except ValueError as error:  # transformers' switch is there, and the model does not follow it.
        raise ScenarioError(f"train.gradient_checkpointing: {error}") from error


def disable_gradient_checkpointing(model: Any) -> None:
    """Have the model keep its activations. Raises ScenarioError when it cannot."""
    getattr(model, f"{_word_for_checkpointing(model)}_checkpointing_disable")()


def _word_for_checkpointing(model: Any) -> str:
    for word in CHECKPOINTING_WORDS:
        if hasattr(model, f"{word}_checkpointing_enable"):
            return word
    raise ScenarioError(f"train.gradient_checkpointing: {type(model).__name__} does not offer it")
