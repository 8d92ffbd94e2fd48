"""What one run measured over all its ranks: speed, step times, losses and counts of tokens."""

from __future__ import annotations

from accel_bench.documents.base import Frozen
from accel_bench.result import Result, Sample, Window


class RunThroughput(Frozen):
    """One run's numbers, global (summed over ranks) unless the name says otherwise."""

    tokens_per_second: float
    """Real tokens of all ranks per wall-clock second of the window."""

    tokens_per_second_per_device: float
    """The same divided by the number of ranks."""

    seconds_per_token: float
    """Wall-clock seconds of the window per real token of all ranks: what is compared."""

    step_seconds: tuple[float, ...]
    """Seconds of each step of the window: the slowest rank's."""

    losses: tuple[float | None, ...]
    """Loss by step number from step 0, warm-up and discarded windows included, summed over ranks.

    Null where any rank's share is not finite or was not kept.
    """

    step_tokens: tuple[int | None, ...]
    """Supervised tokens of all ranks by step number; null where a rank has no sample."""

    real_tokens: int
    """Tokens without padding in the window, of all ranks."""

    processed_tokens: int
    """Tokens with padding in the window, of all ranks."""

    supervised_tokens: int
    """Tokens with a loss in the window, of all ranks."""


def run_throughput(result: Result) -> RunThroughput | None:
    """Return a run's numbers, or None when any rank lacks a window that agrees with the others'.

    The window lasts as long as that of the slowest rank. Clocks of ranks are not compared with one
    another, since they may run on different machines.
    """
    windows = [rank.window for rank in result.ranks if rank.window is not None]
    if len(windows) < max(len(result.ranks), result.experiment.scenario.world_size):
        return None
    seconds = max(window.ended - window.started for window in windows)
    samples = [sample for window in windows for sample in window.samples]
    real = sum(sample.real_tokens for sample in samples)
    if len({len(window.samples) for window in windows}) != 1 or seconds <= 0 or real <= 0:
        return None
    steps = zip(*(window.samples for window in windows), strict=True)
    by_rank = [_by_step(window) for window in windows]
    return RunThroughput(
        tokens_per_second=real / seconds,
        tokens_per_second_per_device=real / seconds / len(windows),
        seconds_per_token=seconds / real,
        step_seconds=tuple(max(sample.seconds for sample in step) for step in steps),
        losses=_losses(by_rank),
        step_tokens=_step_tokens(by_rank),
        real_tokens=real,
        processed_tokens=sum(sample.processed_tokens for sample in samples),
        supervised_tokens=sum(sample.supervised_tokens for sample in samples),
    )


def _by_step(window: Window) -> dict[int, Sample]:
    """All steps that a rank took; those of discarded windows trained the model too."""
    everything = (*window.warmup, *window.discarded, *window.samples)
    return {sample.step: sample for sample in everything}


def _steps(by_rank: list[dict[int, Sample]]) -> list[list[Sample | None]]:
    """For each step number, the sample of every rank, None where it has none."""
    last = max(max(samples) for samples in by_rank)
    return [[samples.get(step) for samples in by_rank] for step in range(last + 1)]


def _losses(by_rank: list[dict[int, Sample]]) -> tuple[float | None, ...]:
    """Sum the ranks' shares, step by step."""
    return tuple(_sum_of_losses(step) for step in _steps(by_rank))


def _sum_of_losses(step: list[Sample | None]) -> float | None:
    """One step's loss; a missing share makes the sum meaningless, so it is missing too."""
    shares = [sample.loss for sample in step if sample is not None and sample.loss is not None]
    return sum(shares) if len(shares) == len(step) else None


def _step_tokens(by_rank: list[dict[int, Sample]]) -> tuple[int | None, ...]:
    """Sum the ranks' supervised tokens, step by step."""
    return tuple(
        None if None in step else sum(s.supervised_tokens for s in step if s is not None)
        for step in _steps(by_rank)
    )


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
