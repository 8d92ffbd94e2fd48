"""Switch a model's own activation checkpointing on and off, under whichever name it has."""

from __future__ import annotations

from typing import Any

from accel_bench.errors import ScenarioError

CHECKPOINTING_WORDS = ("activation", "gradient")
"""What a model's switch for checkpointing is named by: transformers renamed it in 5.23."""


def enable_gradient_checkpointing(model: Any) -> None:
    """Have the model recompute its activations. Raises ScenarioError when it cannot."""
    word = _word_for_checkpointing(model)
    enable = getattr(model, f"{word}_checkpointing_enable")
    enable(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})


def disable_gradient_checkpointing(model: Any) -> None:
    """Have the model keep its activations. Raises ScenarioError when it cannot."""
    getattr(model, f"{_word_for_checkpointing(model)}_checkpointing_disable")()


def _word_for_checkpointing(model: Any) -> str:
    """What the model's own switch is called."""
    for word in CHECKPOINTING_WORDS:
        if hasattr(model, f"{word}_checkpointing_enable"):
            return word
    raise ScenarioError(f"train.gradient_checkpointing: {type(model).__name__} does not offer it")
