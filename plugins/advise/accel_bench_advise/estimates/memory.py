"""From simulated bytes to what a device must have, and the search for the largest that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from accel_bench_advise.estimates.schema import Fit, Footprint, Limit, MemoryEstimate, Part, Span

GIBI = 2**30

BESIDE_TENSORS: Mapping[str, tuple[float, float]] = {
    "cuda": (0.4 * GIBI, 1.0 * GIBI),
    "cpu": (0.3 * GIBI, 0.9 * GIBI),
}
"""Bytes that a process takes beside tensors: a GPU's context and the workspaces of its kernels, a
CPU's libraries. The least and the most that was seen."""

GAPS: Mapping[str, float] = {"cuda": 0.06, "cpu": 0.03}
"""Share of the tensors' bytes that an allocator's gaps add at most, where it need not split."""

SEARCH_STEPS = 40
"""Simulations after which a search ends; it takes three where memory is a straight line."""

BISECTS_AFTER = 6
"""Simulations after which a search halves what is left: memory is then no straight line."""

MODEL_PARTS = ("weights", "quantized weights", "gradients", "optimizer state")
"""Parts that strategies of parallelism may divide; each device has all others of its own."""


def on_one_device(
    footprint: Footprint, copies: Callable[[str], float], ranks: int = 1
) -> dict[Part, float]:
    """Return the bytes of a footprint by part, as one device holds them.

    `copies(part)` says how many times a part of the model is on one device, `ranks` how many ranks
    share it.
    """
    return {
        part: size * (copies(part.removeprefix("quantized ")) if part in MODEL_PARTS else ranks)
        for part, size in footprint.parts.items()
    }


def memory_estimate(
    footprint: Footprint,
    parts: dict[Part, float],
    device: str,
    device_bytes: int | None,
    ranks: int = 1,
) -> MemoryEstimate:
    """Return what a device of that many bytes has to hold for its ranks, and whether it can."""
    tensors = sum(parts.values())
    least, most = (ranks * beside for beside in BESIDE_TENSORS[device])
    needed = Span(low=tensors + least, high=tensors * (1 + GAPS[device]) + most)
    return MemoryEstimate(
        parts=parts,
        tensor_bytes=tensors,
        phase=footprint.phase,
        needed_bytes=needed,
        device_bytes=device_bytes,
        fit=fit_of(needed, device_bytes),
    )


def fit_of(needed: Span, device_bytes: int | None) -> Fit | None:
    """Return whether a device of that many bytes holds a need; None where its size is unknown."""
    if device_bytes is None:
        return None
    if needed.high <= device_bytes:
        return "fits"
    return "may fit" if needed.low <= device_bytes else "does not fit"


def largest_that_fits(
    need: Callable[[int], float], capacity: float, first: int, step: int = 1, limit: int = 2**20
) -> Limit:
    """Return the largest multiple of `step` whose need is within the capacity.

    `need` grows at least as fast as a straight line, as memory does with batch and length: beyond
    where the line through two values that fit reaches the capacity, nothing does. `first` is where
    the search begins.
    """
    known: dict[int, float] = {0: -math.inf}
    limit -= limit % step
    guess = max(step, min(limit, first - first % step))
    for tried in range(SEARCH_STEPS):
        known[guess] = need(guess)
        fits = sorted(n for n in known if known[n] <= capacity)
        above = min((n for n in known if known[n] > capacity), default=limit + step)
        most = _most(fits[-2:], known, capacity, step)
        end = min(above - step, limit if most is None else max(most, fits[-1]))
        if end <= fits[-1]:
            by_limit = end == limit and above > limit
            return Limit(value=fits[-1], bounded_by="search" if by_limit else "memory")
        if tried >= BISECTS_AFTER or (most is None and above <= limit):
            guess = (fits[-1] + end) // 2 // step * step
        else:
            guess = end if most is not None else min(end, 2 * fits[-1])
        guess = max(guess, fits[-1] + step)
    return Limit(value=fits[-1], bounded_by="search")


def _most(fits: list[int], known: Mapping[int, float], capacity: float, step: int) -> int | None:
    """Return beyond which value nothing fits, by the line through two that do; None without it."""
    lower, upper = (fits * 2)[:2]
    rise = known[upper] - known[lower]
    if not 0 < rise < math.inf:  # one value only, or the optimizer's step is the peak of both
        return None
    more = (capacity - known[upper]) / rise * (upper - lower)
    return int((upper + min(more, 1e12)) // step * step)
