"""From simulated bytes to what a device must have, and the search for the largest that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accel_bench.analysis.estimates.schema import Fit, Footprint, Limit, MemoryEstimate, Part, Span

GIBI = 2**30

BESIDE_TENSORS: Mapping[str, tuple[float, float]] = {
    "cuda": (0.4 * GIBI, 1.0 * GIBI),
    "cpu": (0.3 * GIBI, 0.9 * GIBI),
}
"""Bytes that a process takes beside tensors: a GPU's context and the workspaces of its kernels, a
CPU's libraries. The least and the most that was seen."""

GAPS: Mapping[str, float] = {"cuda": 0.06, "cpu": 0.03}
"""Share of the tensors' bytes that an allocator's gaps add at most, where it need not split."""

SEARCH_STEPS = 10
"""Simulations after which a search ends with the largest that was seen to fit."""

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
    footprint: Footprint, parts: dict[Part, float], device: str, device_bytes: int | None
) -> MemoryEstimate:
    """Return what a device of that many bytes has to hold, and whether it can."""
    tensors = sum(parts.values())
    least, most = BESIDE_TENSORS[device]
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

    `need` grows at least as fast as a straight line, as memory does with batch and length, so that
    the line through two values that fit shows where the next one cannot. `first` is where the
    search begins.
    """
    known: dict[int, float] = {}
    limit -= limit % step
    guess = max(step, min(limit, first - first % step))
    for _ in range(SEARCH_STEPS):
        known[guess] = need(guess)
        fitting = max((n for n in known if known[n] <= capacity), default=0)
        failing = min((n for n in known if known[n] > capacity), default=None)
        if fitting == limit:
            return Limit(value=limit, bounded_by="search")
        if failing is not None and failing - fitting <= step:
            return Limit(value=fitting, bounded_by="memory")
        predicted = _crossing(known, capacity, step)
        if predicted == fitting and len(known) > 1 and known[fitting] <= capacity:
            return Limit(value=fitting, bounded_by="memory")
        upper = limit if failing is None else failing - step
        guess = min(max(predicted, fitting + step), upper)
    return Limit(value=fitting, bounded_by="search")


def _crossing(known: Mapping[int, float], capacity: float, step: int) -> int:
    """Return where the line through the two values next to the capacity reaches it."""
    if len(known) == 1:
        ((only, size),) = known.items()
        return 2 * only if size <= capacity else max(step, only // 2 // step * step)
    near = sorted(known, key=lambda n: abs(known[n] - capacity))[:2]
    lower, upper = sorted(near)
    slope = (known[upper] - known[lower]) / (upper - lower)
    if slope <= 0:  # the optimizer's step is the peak of both
        return 2 * upper if known[upper] <= capacity else step
    crossing = lower + (capacity - known[lower]) / slope
    return int(max(crossing, step) // step * step)
