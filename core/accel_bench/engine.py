"""Interfaces of an engine and of the stopwatch that times its steps; torch is not imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

PhaseName: TypeAlias = Literal["data", "forward", "backward", "optimizer"]
"""Name of a part of an optimizer step; the times of a part that occurs several times add up."""

FOLLOWING: Mapping[PhaseName, PhaseName] = {
    "data": "forward",
    "forward": "backward",
    "backward": "optimizer",
}
"""Phase that follows each phase of an optimizer step."""


IGNORED_LABEL = -100
"""Label that torch's cross-entropy leaves out of the loss."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Numbers of tokens, or of the task's other unit, in a batch or step, counted on the host."""

    processed: int
    """Tokens that go through the model, padding included."""

    real: int
    """Tokens that are not padding."""

    supervised: int
    """Tokens that the loss is computed on, after the shift of a causal model: label != -100."""

    real_pairs: int | None = None
    """Sum over sequences of their squared lengths without padding, by which attention's FLOPs grow;
    None if not counted."""

    processed_pairs: int | None = None
    """Sum over rows of their squared widths with padding: the pairs of tokens that attention
    computes; None if not counted."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of this rank."""

    inputs: Mapping[str, Any]
    """Keyword arguments of the model, `labels` included; tensors on the host, shape (samples,
    length)."""

    sequences: int
    """Number of sequences in the micro-batch."""

    tokens: TokenCounts
    """Token counts of the micro-batch."""

    supervised_in_step: int
    """Supervised tokens of the whole optimizer step, over its micro-batches and all ranks.

    The loss is divided by this, so that accumulation, ranks and engines agree on its value.
    """


Loss: TypeAlias = Callable[[Any, Mapping[str, Any], int], Any]
"""Function of the model, the inputs of a micro-batch on the device, and the supervised elements of
the whole optimizer step; returns a tensor of shape (): the sum of the losses divided by that
number, so that micro-batches and ranks add up."""


def own_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the loss that the model computes itself, such as a fused loss that needs no logits:
    the sum over tokens divided by `supervised_in_step`, the step's number of supervised tokens."""
    return model(**inputs, num_items_in_batch=supervised_in_step).loss


class Stopwatch(Protocol):
    """Interface of the timer of optimizer steps, which an engine calls."""

    running: bool
    """True while the engine shall take another optimizer step."""

    def mark(self, phase: PhaseName) -> None:
        """Mark the end of a phase of the step.

        The time since the last call of `mark` or `lap` counts as the time of this phase. Calls only
        count in a few steps after the window. An engine that never calls this gets no split by
        phase.
        """

    def resume(self) -> None:
        """Exclude the time since the last `lap`, such as for preparing input, from the next step.

        Only for engines that answer requests or call an operation. A training run that calls this
        ends as `invalid`: all of its time belongs to its steps.
        """

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End one optimizer step.

        `batches` are its micro-batches on this rank; `loss` is this rank's part of the step's
        loss, a float or a detached tensor of shape () that is left on its device until the last
        step of the window has ended. The window ends once its losses have been read.
        """


class Engine(Protocol):
    """Loop over the optimizer steps, written by a plugin."""

    def run(self, stopwatch: Stopwatch) -> None:
        """Take optimizer steps while `stopwatch.running`, and call `stopwatch.lap(batches, loss)`
        after each."""
