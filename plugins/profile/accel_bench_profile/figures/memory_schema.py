"""What a rank's profile says of memory, and of each step that nothing recorded."""

from __future__ import annotations

from accel_bench.documents.base import Frozen


class MemoryPoint(Frozen):
    """Memory at a moment."""

    seconds: float
    """Seconds since the first allocation that was recorded."""

    bytes: dict[str, int]
    """By category, such as `activations`; without those of no byte."""


class MemoryTimeline(Frozen):
    """Bytes of tensors on a rank's device by category, over a few steps.

    What was there before counts where the steps use it. Recording takes long: moments are those of
    the recorded steps, and no measured ones.
    """

    steps: int
    """Recorded steps."""

    peak_bytes: int
    peak_seconds: float
    """When that was."""

    peak: dict[str, int]
    """Its bytes by category, the largest first."""

    points: tuple[MemoryPoint, ...]

    snapshot: str = ""
    """File beside the profile that https://pytorch.org/memory_viz shows; empty but on CUDA."""


class StepScalars(Frozen):
    """One optimizer step of a rank that nothing recorded, and that no metric is made of."""

    seconds: float

    elements: int
    """Tokens that are not padding."""

    memory_bytes: int | None = None
    """On CUDA the peak of allocated bytes within the step, else the resident memory after it."""
