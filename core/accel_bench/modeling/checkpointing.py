"""Switching of a model's activation checkpointing, and the interface of a checkpoint function."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from accel_bench.errors import ScenarioError

CHECKPOINTING_WORDS = ("activation", "gradient")
"""Words before `_checkpointing_enable` in a model's method, which transformers renamed in 5.23."""

RECOMPUTES_LAST_MATMUL = "recomputes_last_matmul"
"""Attribute set to False by a module whose forward has saved all its inputs when its last matmul
begins. Checkpointing ends the second forward there, so the matmul is not recomputed and the core
does not count its FLOPs twice."""


@runtime_checkable
class CheckpointFunction(Protocol):
    """Function that checkpoints a decoder block in place of torch's own `checkpoint`.

    A plugin puts the function into the block's `_gradient_checkpointing_func`. After the warm-up
    the core asks it what is recomputed; torch's own function recomputes everything.
    """

    policy: str
    """Name of the recomputed blocks or operations, such as `selective`, for the effective
    configuration."""

    def __call__(self, function: Any, *args: Any) -> Any:
        """Return `function(*args)`, a block's forward pass, which the backward pass recomputes."""

    def recomputes(self, matmuls: int) -> tuple[bool | None, bool | None]:
        """Return whether a block's matmuls are recomputed, and whether its attention is.

        `matmuls` is the number of the block's weight matrices. An answer is None if it is unknown,
        or if only some of the operations are recomputed.
        """


def enable_gradient_checkpointing(model: Any) -> None:
    """Enable a model's activation checkpointing. Raises ScenarioError if the model lacks it."""
    word = _word_for_checkpointing(model)
    enable = getattr(model, f"{word}_checkpointing_enable")
    try:
        enable(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})
    except ValueError as error:  # transformers' switch is there, and the model does not follow it.
        raise ScenarioError(f"train.gradient_checkpointing: {error}") from error


def disable_gradient_checkpointing(model: Any) -> None:
    """Disable a model's activation checkpointing. Raises ScenarioError if the model lacks it."""
    getattr(model, f"{_word_for_checkpointing(model)}_checkpointing_disable")()


def _word_for_checkpointing(model: Any) -> str:
    for word in CHECKPOINTING_WORDS:
        if hasattr(model, f"{word}_checkpointing_enable"):
            return word
    raise ScenarioError(f"train.gradient_checkpointing: {type(model).__name__} does not offer it")
