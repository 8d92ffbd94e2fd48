"""Throughput of one run over all its ranks: speed, step times, losses and token counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, stdev
from typing import TypeVar

from accel_bench.documents.base import Frozen
from accel_bench.result import Result, Sample, Window

T = TypeVar("T", int, float)

SAME_STEP = 0.005
"""Relative difference of real tokens per step up to which steps count as equal work."""

UNIT_TOKENS = 1000
"""Tokens of the unit of comparison if steps differ in work."""


class LossStatistics(Frozen):
    """Statistics of one run's losses, from step 0, warm-up and discarded windows included."""

    mean: float
    minimum: float
    maximum: float

    standard_deviation: float | None
    """Sample standard deviation; null with one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunThroughput:
    """Speed, losses and tokens of one run, summed over its ranks unless the name says otherwise."""

    tokens_per_second: float
    """Real tokens of all ranks per wall-clock second of the window."""

    tokens_per_second_per_device: float
    """Real tokens per second of the window, divided by the number of ranks."""

    seconds_per_token: float
    """Wall-clock seconds of the window per real token of all ranks, the compared figure."""

    step_seconds: tuple[float, ...]
    """Seconds of each step of the window on the slowest rank."""

    losses: tuple[float | None, ...]
    """Loss by step number from step 0, warm-up and discarded windows included, summed over
    data-parallel ranks.

    Null if any rank's part is not finite or was not kept, and for answered requests.
    """

    step_tokens: tuple[int | None, ...]
    """Supervised tokens of all ranks by step number; null if a rank has no sample."""

    real_tokens: int
    """Tokens without padding in the window, of all ranks."""

    seconds: float
    """Wall-clock seconds of the window."""

    sequences: int
    """Samples of the data in the window, of all ranks."""

    @property
    def tokens_per_hour(self) -> float:
        """Real tokens of all ranks per hour."""
        return 3600 * self.tokens_per_second

    @property
    def samples_per_second(self) -> float:
        """Samples of all ranks per second of the window."""
        return self.sequences / self.seconds

    @property
    def steps_per_second(self) -> float:
        """Optimizer steps per second of the window."""
        return len(self.step_seconds) / self.seconds

    @property
    def loss_statistics(self) -> LossStatistics | None:
        """Statistics of the losses of all steps; None if one is unknown."""
        known = [loss for loss in self.losses if loss is not None]
        if not known or len(known) < len(self.losses):
            return None
        return LossStatistics(
            mean=fmean(known),
            minimum=min(known),
            maximum=max(known),
            standard_deviation=stdev(known) if len(known) > 1 else None,
        )


def run_throughput(result: Result) -> RunThroughput | None:
    """Return a run's throughput; None unless all ranks have windows with equally many steps.

    The window lasts as long as on the slowest rank. Clocks of ranks are not compared, since they
    may be on different machines.
    """
    windows = [rank.window for rank in result.ranks if rank.window is not None]
    if len(windows) < max(len(result.ranks), result.experiment.scenario.world_size):
        return None
    seconds = max(window.seconds for window in windows)
    counted = _data_windows(result)
    real = sum(sample.real_tokens for window in counted for sample in window.samples)
    if len({len(window.samples) for window in windows}) != 1 or seconds <= 0 or real <= 0:
        return None
    steps = zip(*([sample.seconds for sample in window.samples] for window in windows), strict=True)
    by_rank = [{sample.step: sample for sample in window.all_steps} for window in counted]
    losses = _summed(by_rank, attrgetter("loss"))
    return RunThroughput(
        tokens_per_second=real / seconds,
        tokens_per_second_per_device=real / seconds / len(windows),
        seconds_per_token=seconds / real,
        step_seconds=tuple(map(max, steps)),
        losses=(None,) * len(losses) if result.experiment.scenario.generates else losses,
        step_tokens=_summed(by_rank, attrgetter("supervised_tokens")),
        real_tokens=real,
        seconds=seconds,
        sequences=sum(sample.sequences for window in counted for sample in window.samples),
    )


def epochs(result: Result) -> float | None:
    """Return the number of epochs in all steps of a run; None if the data's size is unknown.

    Steps of warm-up and of discarded windows are included.
    """
    speed, scenario = run_throughput(result), result.experiment.scenario
    facts = result.ranks[0].evidence.get(scenario.data.use) if result.ranks else None
    samples = facts.get("samples") if isinstance(facts, Mapping) else None
    if speed is None or not isinstance(samples, int) or samples <= 0:
        return None
    return len(speed.losses) * scenario.train.global_batch_size / samples


def _data_windows(result: Result) -> list[Window]:
    """Return one rank's window for each group of ranks that compute the same batches."""
    return [rank.window for rank in result.data_ranks if rank.window is not None]


def _summed(
    by_rank: Sequence[Mapping[int, Sample]], read: Callable[[Sample], T | None]
) -> tuple[T | None, ...]:
    """Return sums over ranks of what `read` returns, by step from 0; None if a rank lacks it."""
    last: int = max(max(samples) for samples in by_rank)
    if len(by_rank) == 1 and [*by_rank[0]] == [*range(last + 1)]:
        return tuple(map(read, by_rank[0].values()))
    sums: list[T | None] = []
    for step in range(last + 1):
        samples = [ranks_samples.get(step) for ranks_samples in by_rank]
        known = [value for sample in samples if sample and (value := read(sample)) is not None]
        sums.append(sum(known) if len(known) == len(samples) else None)
    return tuple(sums)


class TokenKinds(Frozen):
    """Number of tokens by kind; a mean over steps need not be an integer."""

    processed: float
    """Tokens with padding, which the device computes."""

    real: float
    """Tokens without padding, which all speeds count."""

    supervised: float
    """Tokens with a loss: label != -100 after the shift of a causal model."""


class TokenSummary(Frozen):
    """Token counts of one run's measured window."""

    per_step_global: TokenKinds
    """Mean tokens per step of all devices together."""

    per_step_per_device: TokenKinds
    """Mean tokens per step and device."""

    total_global: TokenKinds
    """Tokens of the window on all devices together."""

    total_per_device: TokenKinds
    """Mean tokens of the window per device."""


def token_summary(result: Result) -> TokenSummary | None:
    """Return a run's token counts; None if a rank has no window."""
    windows = [rank.window for rank in result.ranks if rank.window is not None]
    if not windows or len(windows) < len(result.ranks) or not windows[0].samples:
        return None
    samples = [sample for window in _data_windows(result) for sample in window.samples]
    devices, steps = len(windows), len(windows[0].samples)
    return TokenSummary(
        per_step_global=_kinds(samples, 1 / steps),
        per_step_per_device=_kinds(samples, 1 / steps / devices),
        total_global=_kinds(samples, 1.0),
        total_per_device=_kinds(samples, 1 / devices),
    )


def _kinds(samples: list[Sample], factor: float) -> TokenKinds:
    return TokenKinds(
        processed=sum(sample.processed_tokens for sample in samples) * factor,
        real=sum(sample.real_tokens for sample in samples) * factor,
        supervised=sum(sample.supervised_tokens for sample in samples) * factor,
    )


def unit_of(steps: Sequence[float]) -> tuple[float, str]:
    """Return a unit for comparing two stacks: its number of tokens, and its name. The unit is a
    step if both stacks' tokens per step, `steps`, are nearly equal, else 1,000 tokens."""
    if abs(steps[0] - steps[1]) <= SAME_STEP * max(steps):
        return steps[0], f"a step of {steps[0]:,.0f} tokens"
    return float(UNIT_TOKENS), f"{UNIT_TOKENS:,} tokens"
