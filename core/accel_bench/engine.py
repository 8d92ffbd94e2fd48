"""The protocol between an engine and the stopwatch, without torch: `null` follows it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

PhaseName: TypeAlias = Literal["data", "forward", "backward", "optimizer"]
"""Parts of an optimizer step. A part that comes several times, by accumulation, adds up."""

FOLLOWING: Mapping[PhaseName, PhaseName] = {
    "data": "forward",
    "forward": "backward",
    "backward": "optimizer",
}
"""The phase that begins where an engine marks the end of another."""


IGNORED_LABEL = -100
"""Label that torch's cross-entropy leaves out of the loss."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of a batch or a step, or what else the task counts, counted on the host by the
    collator."""

    processed: int
    """Tokens that go through the model, padding included."""

    real: int
    """Tokens that are not padding."""

    supervised: int
    """Tokens that the loss is computed on: label != -100 after the shift of a causal model."""

    real_pairs: int | None = None
    """Pairs of tokens of one sequence, without padding: the sum over sequences of their squared
    lengths, by which attention's FLOPs grow. None where they were not counted."""

    processed_pairs: int | None = None
    """Pairs that attention computes, padding included: of padded rows the sum of their squared
    widths. None where they were not counted."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of this rank."""

    inputs: Mapping[str, Any]
    """Keyword arguments of the model, `labels` included; tensors on the host, shape (samples,
    length)."""

    sequences: int
    """Sequences in it."""

    tokens: TokenCounts
    """Its tokens, on this rank."""

    supervised_in_step: int
    """Supervised tokens of the whole optimizer step, over its micro-batches and all ranks.

    The loss is divided by this, so that accumulation, ranks and engines agree on its value.
    """


Loss: TypeAlias = Callable[[Any, Mapping[str, Any], int], Any]
"""Takes the model, the inputs of a micro-batch on the device, and the supervised elements of the
whole optimizer step; returns a tensor of shape (): the sum of the losses divided by that number, so
that micro-batches and ranks add up."""


def own_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the loss that the model computes itself: a fused one makes no logits for another."""
    return model(**inputs, num_items_in_batch=supervised_in_step).loss


class Stopwatch(Protocol):
    """What an engine sees of the measurement."""

    running: bool
    """True while the engine shall take another optimizer step."""

    def mark(self, phase: PhaseName) -> None:
        """Mark the end of a part of a step.

        The time since the last mark, or since the last lap, is this phase's. Only a few steps after
        the window are split so; otherwise nothing happens here. An engine that marks nothing gets
        no split.
        """

    def resume(self) -> None:
        """Leave the time since the last lap out of the step that follows, as of what is prepared.

        Only for engines that answer requests or call an operation. A run that trains is ended by it
        as `invalid`: all of its time is that of steps.
        """

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End one optimizer step.

        `batches` are its micro-batches on this rank; `loss` is this rank's part of the step's
        loss, a float or a detached tensor of shape () that is left on its device until the last
        step of the window has ended. The window ends once its losses have been read.
        """


class Engine(Protocol):
    """What drives the optimizer steps."""

    def run(self, stopwatch: Stopwatch) -> None:
        """While `stopwatch.running`: take one optimizer step, then call `stopwatch.lap(batches,
        loss)`."""
