"""Dropout without a stored mask: the backward redraws the mask from the generator's state.

Torch's dropout stores a mask of the input's size for the backward, in addition to the dropped copy
that the next product stores. A generator's state is 16 bytes on a GPU and 5 kB on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draw:
    """Dropout mask, or the random generator's state to redraw it; exactly one of both is None."""

    state: torch.Tensor | None
    """State of the device's generator before the draw; None if the mask is stored instead."""

    mask: torch.Tensor | None
    """Mask of the input's shape, true for kept elements; None if a state is stored instead."""


def prepare(like: torch.Tensor, probability: float) -> Draw:
    """Return the generator's state from which `drop` draws the mask for a tensor with the shape,
    dtype and device of `like`; the mask itself if it must be stored.

    No other random numbers may be drawn before `drop`. `probability` is the share of dropped
    elements.
    """
    if _keeps_masks(like):
        return Draw(None, torch.native_dropout(like, probability, True)[1])
    return Draw(_generator(like.device).get_state(), None)


def drop(inputs: torch.Tensor, probability: float, draw: Draw) -> torch.Tensor:
    """Return the inputs with dropped elements set to zero and kept elements scaled up.

    `draw` comes from `prepare`. The random numbers are the same that `torch.nn.functional.dropout`
    would draw.
    """
    if draw.mask is not None:
        return inputs * draw.mask * scale(probability)
    dropped: torch.Tensor = torch.native_dropout(inputs, probability, True)[0]
    return dropped


def drop_again(
    inputs: torch.Tensor, probability: float, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the dropped inputs and the mask that `drop` drew for the same arguments."""
    if draw.mask is not None:
        return inputs * draw.mask * scale(probability), draw.mask
    assert draw.state is not None
    generator = _generator(inputs.device)
    now = generator.get_state()
    generator.set_state(draw.state)
    try:
        dropped, mask = torch.native_dropout(inputs, probability, True)
    finally:
        generator.set_state(now)
    return dropped, mask


def scale(probability: float) -> float:
    """Return the factor by which dropout scales kept elements, 1 / (1 - `probability`)."""
    return 0.0 if probability >= 1 else 1 / (1 - probability)


def _keeps_masks(like: torch.Tensor) -> bool:
    """Return whether masks for `like` must be stored: in compiled code or captured CUDA graphs."""
    if torch.compiler.is_compiling():
        return True
    return like.is_cuda and bool(torch.cuda.is_current_stream_capturing())


def _generator(device: torch.device) -> torch.Generator:
    """Return torch's default generator of a device."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator: torch.Generator = torch.cuda.default_generators[index]
        return generator
    return torch.default_generator
