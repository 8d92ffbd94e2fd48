"""Three counts of tokens, always: processed, real, supervised, each with its scope in its name."""

from __future__ import annotations

from accel_bench.documents.base import Frozen
from accel_bench.result import Result, Sample


class TokenKinds(Frozen):
    """Tokens counted in three ways; a mean over steps need not be a whole number."""

    processed: float
    """With padding: what the device computes."""

    real: float
    """Without padding: what the user brought, and what every speed here counts."""

    supervised: float
    """With a loss: label != -100 after the shift of a causal model."""


class TokenSummary(Frozen):
    """Tokens of one run's measured window."""

    per_step_global: TokenKinds
    """Mean over the steps, of all devices together."""

    per_step_per_device: TokenKinds
    """Mean over the steps and devices."""

    total_global: TokenKinds
    """Sum over the window, of all devices together."""

    total_per_device: TokenKinds
    """Sum over the window, mean over the devices."""


def token_summary(result: Result) -> TokenSummary | None:
    """Count a run's tokens; None where a rank has no window."""
    windows = [rank.window for rank in result.ranks if rank.window is not None]
    if not windows or len(windows) < len(result.ranks) or not windows[0].samples:
        return None
    samples = [sample for window in windows for sample in window.samples]
    devices, steps = len(windows), len(windows[0].samples)
    return TokenSummary(
        per_step_global=_kinds(samples, 1 / steps),
        per_step_per_device=_kinds(samples, 1 / steps / devices),
        total_global=_kinds(samples, 1.0),
        total_per_device=_kinds(samples, 1 / devices),
    )


def _kinds(samples: list[Sample], factor: float) -> TokenKinds:
    """Sum each kind, and multiply it."""
    return TokenKinds(
        processed=sum(sample.processed_tokens for sample in samples) * factor,
        real=sum(sample.real_tokens for sample in samples) * factor,
        supervised=sum(sample.supervised_tokens for sample in samples) * factor,
    )
