"""Packing of a matrix in GPTQ's format by rounding to nearest, on the matrix's device.

The format is version 2 of GPTQ's, with unmodified zero points. A 32-bit word holds the codes of
consecutive inputs, or the zero points of consecutive outputs, the first in the lowest bits. A
weight is `scale * (code - zero)` with the scale and zero of its group of inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from accel_bench_gptq.checkpoint import GPTQSettings

WORD_BITS = 32
"""Bits of a packed word."""

SMALLEST_SCALE = 2.0**-24
"""Smallest positive float16, used as scale of a group of zeros."""


class Packed(NamedTuple):
    """A packed matrix of shape (outputs, inputs)."""

    qweight: torch.Tensor
    """Codes, int32 of shape (inputs * bits / 32, outputs)."""

    qzeros: torch.Tensor
    """Zero points, int32 of shape (groups, outputs * bits / 32)."""

    scales: torch.Tensor
    """Quantization steps, float16 of shape (groups, outputs)."""

    g_idx: torch.Tensor
    """Group index of each input, int32 of shape (inputs,)."""


def pack(weight: torch.Tensor, settings: GPTQSettings) -> Packed:
    """Return a matrix of shape (outputs, inputs), both multiples of 32, rounded and packed.

    Rounding changes a weight by at most half a step. A group's range is chosen as in GPTQ: with
    `sym` it is centred on zero. With `desc_act` inputs are grouped by decreasing norm of their
    weights, since activations are unknown.
    """
    import torch

    bits, most = settings.bits, 2**settings.bits - 1
    full = weight.detach().float()
    groups_of = _groups(full, settings.group_size, settings.desc_act)
    low, high = _ranges(full, groups_of)
    if settings.sym:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / most).clamp(min=SMALLEST_SCALE).half()
    steps = scales.float()
    middle = torch.full_like(steps, 2 ** (bits - 1))
    zeros = middle if settings.sym else (-low / steps).round().clamp(0, most)
    codes = (full.T / steps[groups_of]).round_().add_(zeros[groups_of]).clamp_(0, most)
    return Packed(
        qweight=_words(codes.to(torch.int32), bits),
        qzeros=_words(zeros.to(torch.int32).T, bits).T.contiguous(),
        scales=scales,
        g_idx=groups_of.to(torch.int32),
    )


def unpack(packed: Packed, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the dequantized matrix, transposed to shape (inputs, outputs), in `dtype`.

    `bits` is the number of bits per weight.
    """
    import torch

    most = 2**bits - 1
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32, device=packed.qweight.device)
    codes = (packed.qweight[:, None, :] >> shifts[None, :, None]) & most
    zeros = (packed.qzeros[:, :, None] >> shifts) & most
    groups_of = packed.g_idx.long()
    centred = codes.flatten(0, 1) - zeros.flatten(1)[groups_of]
    return (packed.scales[groups_of] * centred).to(dtype)


def _groups(full: torch.Tensor, group_size: int, desc_act: bool) -> torch.Tensor:
    """Return the group index of each input, of shape (inputs,); the last group may be smaller.

    `full` is the matrix of shape (outputs, inputs). With `desc_act` inputs are grouped by
    decreasing norm.
    """
    import torch

    inputs = full.shape[1]
    numbers = torch.arange(inputs, device=full.device)
    numbers = numbers // (inputs if group_size == -1 else group_size)
    if not desc_act:
        return numbers
    order = full.norm(dim=0).argsort(descending=True, stable=True)
    return torch.empty_like(numbers).scatter_(0, order, numbers)


def _ranges(full: torch.Tensor, groups_of: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each group's smallest and largest weight, two tensors of shape (groups, outputs).

    Smallest weights are at most 0, and largest at least 0. `full` is the matrix of shape (outputs,
    inputs), and `groups_of` the group index of each input.
    """
    import torch

    groups = int(groups_of.max()) + 1
    size = int((groups_of == 0).sum())
    ordered = full[:, groups_of.argsort(stable=True)]
    padded = torch.nn.functional.pad(ordered, (0, groups * size - full.shape[1]))
    blocks = padded.unflatten(1, (groups, size))
    return blocks.amin(-1).clamp(max=0).T, blocks.amax(-1).clamp(min=0).T


def _words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack each column of codes, (rows, columns), into words, (rows * bits / 32, columns)."""
    import torch

    parts = codes.unflatten(0, (-1, WORD_BITS // bits))
    words = torch.zeros_like(parts[:, 0])
    for place in range(parts.shape[1]):
        words |= parts[:, place] << (bits * place)
    return words.contiguous()
