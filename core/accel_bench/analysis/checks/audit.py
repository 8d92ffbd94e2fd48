"""Self-audit of a result: invariants that relate its figures to one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from accel_bench.analysis.checks.pace import pace_figures
from accel_bench.analysis.metrics.offered_load import offered_rate
from accel_bench.analysis.metrics.utilization import devices_used, peak_flops_of, utilization
from accel_bench.analysis.wording import percent
from accel_bench.documents.base import Frozen
from accel_bench.machine.devices import device_types
from accel_bench.result import Figure, Metric, RankResult, Result, Status, Window
from accel_bench.scenario.uses import CALLS, TOKENS

CLOCK_TOLERANCE = 0.02
"""Relative disagreement allowed between the steps of a window and the wall clock around it."""

CLOCK_SLACK_SECONDS = 0.05
"""Disagreement in seconds that is always allowed, for interruptions by the scheduler."""

PHASE_TOLERANCE = 0.05
"""Relative disagreement allowed between the sum of a step's phases and the step."""

PHASE_SLACK_SECONDS = 0.002
"""Disagreement in seconds that is always allowed, for an engine's work between phases."""

REPLICA_TOLERANCE = 0.01
"""Largest distance of two replicas' weights, relative to their change, due to rounding."""


class Broken(Frozen):
    """A violated invariant of a result."""

    invariant: str
    """Name of the invariant, a key of `INVARIANTS`."""

    figures: str
    """Contradicting figures, in words."""


def audit(result: Result) -> list[Broken]:
    """Return the invariants that a completed, measured result violates; empty for other results."""
    if not result.status.completed or result.imported:
        return []
    return [
        Broken(invariant=name, figures=figures)
        for name, check in INVARIANTS.items()
        for figures in check(result)
    ]


def audit_failures(result: Result, broken: Sequence[Broken] | None = None) -> tuple[str, ...]:
    """Return the violated invariants that forbid a verdict on a result, as texts with the figures.

    `broken` is the result of `audit`, if it is known already.
    """
    return tuple(
        f"{violation.invariant}: {violation.figures}"
        for violation in (audit(result) if broken is None else broken)
        if violation.invariant not in DEGRADING_ALONE
    )


def with_audit(result: Result) -> Result:
    """Return the result, marked `degraded` with a reason for each invariant that it violates."""
    return marked_degraded(result, audit(result))


def marked_degraded(result: Result, broken: Sequence[Broken]) -> Result:
    """Return the result, marked `degraded` with a reason for each invariant in `broken`."""
    if not broken:
        return result
    reasons = (f"self-audit, {violation.invariant}: {violation.figures}" for violation in broken)
    changes = {"status": Status.DEGRADED, "reasons": (*result.reasons, *reasons)}
    return result.model_copy(update=changes)


def sequence_length(result: Result) -> Iterator[str]:
    """Yield a message unless processed tokens/s x devices / (samples/s) = the sequence length.

    The equation holds if the data plugin's evidence says that samples have one length
    (`constant_length`), and no plugin that changes batches says otherwise. Else the length is an
    upper limit. Seconds and devices cancel, so tokens and samples are compared. A sample of several
    sequences, such as a pair of answers, has their total length (`sequences_per_sample`).
    """
    scenario = result.experiment.scenario
    if scenario.counts not in (TOKENS, CALLS):
        return  # Samples of other kinds, such as sounds, have no sequence length.
    planned = scenario.data.sequence_length
    if scenario.generates:
        planned += scenario.inference.new_tokens
    several = (value for rank in result.ranks for value in _reported(rank, "sequences_per_sample"))
    planned *= max((value for value in several if type(value) is int), default=1)
    steps = [sample for window in _windows(result).values() for sample in window.all_steps]
    lengths = {step.processed_tokens / step.sequences for step in steps if step.sequences}
    if not lengths:
        return
    longest = max(lengths)
    reports = [_reported(rank, "constant_length") for rank in result.ranks]
    constant = any(values and all(value is True for value in values) for values in reports)
    if longest > planned or (constant and lengths != {planned}):
        yield (
            f"{sum(step.processed_tokens for step in steps):,} processed tokens in "
            f"{sum(step.sequences for step in steps):,} samples, up to {longest:,.6g} in one; "
            f"the sequence length is {planned:,}"
        )


def _reported(rank: RankResult, key: str) -> list[Any]:
    return [e[key] for e in rank.evidence.values() if isinstance(e, dict) and key in e]


def global_batch(result: Result) -> Iterator[str]:
    """Yield a message unless steps x global batch size = samples of all ranks in the window.

    Ranks that share a batch count once.
    """
    windows, scenario = list(_windows(result).values()), result.experiment.scenario
    if len(windows) < scenario.world_size or offered_rate(scenario) is not None:
        return
    size = scenario.train.global_batch_size
    counts = {len(window.samples) for window in windows}
    counted = [rank.window for rank in result.data_ranks if rank.window is not None]
    samples = sum(sample.sequences for window in counted for sample in window.samples)
    if len(counts) > 1:
        yield f"ranks measured different numbers of steps: {sorted(counts)}"
    elif samples != counts.pop() * size:
        steps = len(windows[0].samples)
        yield f"{steps:,} steps x global batch {size:,} = {steps * size:,}, but {samples:,} samples"


def token_counts(result: Result) -> Iterator[str]:
    """Yield a message for a rank that violates processed >= real >= supervised tokens in a step."""
    for name, window in _windows(result).items():
        for step in window.all_steps:
            counts = (step.processed_tokens, step.real_tokens, step.supervised_tokens)
            if not counts[0] >= counts[1] >= counts[2] >= 0:
                shown = "{:,} processed, {:,} real, {:,} supervised tokens".format(*counts)
                yield f"{name}step {step.step}: {shown}"
                break


def rate_times_time(result: Result) -> Iterator[str]:
    """Yield a message unless the seconds of the steps sum up to the window's wall-clock time."""
    for name, window in _windows(result).items():
        if window.samples and window.samples[0].device_seconds is None:
            yield from _clock_figures(name, window, "steps", [s.seconds for s in window.samples])


def device_clock(result: Result) -> Iterator[str]:
    """Yield a message unless seconds between device events sum up to the window's wall time."""
    for name, window in _windows(result).items():
        seconds = [s.device_seconds for s in window.samples if s.device_seconds is not None]
        if seconds and len(seconds) == len(window.samples):
            yield from _clock_figures(name, window, "device events", seconds)


def parent_clock(result: Result) -> Iterator[str]:
    """Yield a message for a rank whose window's seconds contradict the parent process's clock."""
    seen = {window.rank: window for window in result.seen_windows}
    for name, rank in _named_ranks(result):
        if rank.rank not in seen or rank.window is None:
            continue
        bounds, seconds = seen[rank.rank], rank.window.ended - rank.window.started
        said = f"{name}the window took {seconds:.6g} s by the rank's clock"
        if seconds < bounds.at_least - CLOCK_SLACK_SECONDS:
            yield f"{said}, and at least {bounds.at_least:.6g} s by the parent's"
        elif bounds.at_most is not None and seconds > bounds.at_most + CLOCK_SLACK_SECONDS:
            yield f"{said}, and at most {bounds.at_most:.6g} s by the parent's"


def order_statistics(result: Result) -> Iterator[str]:
    """Yield a message for a rank whose step times violate 0 < minimum <= median <= maximum."""
    for name, window in _windows(result).items():
        seconds = [sample.seconds for sample in window.samples]
        if seconds and not 0 < min(seconds) <= median(seconds) <= max(seconds) < math.inf:
            shown = " / ".join(f"{f(seconds):.6g}" for f in (min, median, max))
            yield f"{name}step seconds, minimum / median / maximum: {shown}"


def left_out(result: Result) -> Iterator[str]:
    """Yield a message for each rank that left seconds out of its window, if the run trains."""
    for name, window in _windows(result).items() if result.experiment.scenario.trains else ():
        if window.left_out_seconds:
            yield f"{name}{window.left_out_seconds:.6g} s were left out of a window that trains"


def pace(result: Result) -> Iterator[str]:
    """Yield a message if a training window was much faster than the steps before or after it."""
    for name, rank in _named_ranks(result) if result.experiment.scenario.trains else ():
        if rank.window is not None and rank.window.samples:
            for figures in pace_figures(rank.window, rank.steps_after):
                yield f"{name}{figures}"


def memory_order(result: Result) -> Iterator[str]:
    """Yield a message unless peak memory by NVML >= reserved >= allocated, as far as measured."""
    for name, rank in _named_ranks(result):
        seen = [*rank.metrics, *(m for m in result.metrics if m.rank in (None, rank.rank))]
        peaks = [(what, _largest(seen, *source)) for what, source in MEMORY.items()]
        known = [(what, peak) for what, peak in peaks if peak is not None]
        for (more, larger), (less, smaller) in pairwise(known):
            if larger < smaller:
                yield f"{name}{larger:,.0f} bytes {more}, but {smaller:,.0f} bytes {less}"


def devices(result: Result) -> Iterator[str]:
    """Yield a message unless the used devices have the scenario's number and type of devices."""
    scenario = result.experiment.scenario
    used = devices_used(result)
    if used is not None and used != scenario.world_size:
        yield f"{used} devices used, {scenario.world_size} asked"
    kind = scenario.resources.device
    known = device_types().get(kind)  # None of a result from a machine that has other ones
    kinds = {rank.device.type for rank in result.ranks if rank.device}
    if known is not None and kinds - {known.torch_type}:
        yield f"used {', '.join(sorted(kinds))}, asked {kind}"


def packages(result: Result) -> Iterator[str]:
    """Yield a message for a rank that ran with another Python or torch than was planned."""
    if result.machine is None:
        return
    planned = {"python": result.machine.python, "torch": result.machine.versions.get("torch")}
    for name, rank in _named_ranks(result):
        for what, version in planned.items():
            used = getattr(rank.effective, what)
            if used is not None and version is not None and _public(used) != _public(version):
                yield f"{name}ran with {what} {used}, planned with {version}"


def _public(version: str) -> str:
    return version.partition("+")[0]  # a build's name may stand in the metadata alone


def replicas(result: Result) -> Iterator[str]:
    """Yield a message if replicas that began with equal weights ended with different weights.

    Ranks with different parts of a model, such as pipeline stages or experts, are no replicas.
    """
    first = next((rank.update for rank in result.ranks if rank.update), None)
    if first is None or not first.norm:
        return
    for rank in result.ranks:
        other = rank.update
        if other is None or other.weights_before != first.weights_before:
            continue
        apart = math.dist(first.weights, other.weights) / first.norm
        if apart > REPLICA_TOLERANCE:
            yield (
                f"the weights of rank {rank.rank} and rank {result.ranks[0].rank} are "
                f"{percent(apart)} of their update apart after {other.steps} steps"
            )


def phases(result: Result) -> Iterator[str]:
    """Yield a message unless the phases of a step sum up to the step's seconds."""
    for name, rank in _named_ranks(result):
        split = rank.phases
        if split is None:
            continue
        total = sum(split.seconds.values())
        allowed = max(PHASE_TOLERANCE * split.step_seconds, PHASE_SLACK_SECONDS)
        if abs(total - split.step_seconds) > allowed:
            parts = " + ".join(f"{phase} {value:.4g}" for phase, value in split.seconds.items())
            yield f"{name}{parts} = {total:.4g} s, but the step took {split.step_seconds:.4g} s"


def model_utilization(result: Result) -> Iterator[str]:
    """Yield a message unless 0 < causal MFU <= 1, if the peak FLOP/s of the dtype is known."""
    peak = peak_flops_of(result)
    used = utilization(result, peak) if peak is not None else None
    if used is not None and used.mfu is not None:
        yield from utilization_figures(used.mfu.causal)


def utilization_figures(mfu: float) -> Iterator[str]:
    """Yield a message if an MFU is not above 0 and at most 1."""
    if not 0 < mfu <= 1:
        yield f"an MFU of {mfu:.4g} is not above 0 and at most 1"


INVARIANTS: Mapping[str, Callable[[Result], Iterator[str]]] = {
    check.__name__: check
    for check in (
        # Tokens per second are made of these counts, whichever of them is wrong.
        sequence_length,
        global_batch,
        token_counts,
        # And of these clocks: of two that disagree, one is wrong.
        rate_times_time,
        device_clock,
        parent_clock,
        # All of the time of training is that of steps.
        left_out,
        # Steps that are much faster there than anywhere else were not computed there.
        pace,
        # A step that took no time was not measured.
        order_statistics,
        # Two readings of one memory: the device that was watched may not be the one that computed.
        memory_order,
        # More than the device can compute was not computed.
        model_utilization,
        # Another number or kind of devices is another experiment.
        devices,
        # So are other packages.
        packages,
        # Replicas that drift apart train several models.
        replicas,
        # A few steps after the window, in which a busy machine steps in between two marks.
        phases,
    )
}
"""Checks by the invariant's name; each yields messages with the contradicting figures."""

DEGRADING_ALONE = frozenset({"phases"})
"""Invariants whose violation degrades a result but allows a verdict."""

MEMORY: Mapping[str, tuple[Figure, str]] = {
    "by NVML": ("run_peak_driver", ""),
    "reserved": ("peak_reserved", ""),
    "allocated": ("peak_memory", "allocated"),
}
"""Figures of peak memory from the largest to the smallest, each with a kind of measurement."""


def _named_ranks(result: Result) -> list[tuple[str, RankResult]]:
    several = len(result.ranks) > 1
    return [(f"rank {rank.rank}: " if several else "", rank) for rank in result.ranks]


def _windows(result: Result) -> dict[str, Window]:
    return {name: rank.window for name, rank in _named_ranks(result) if rank.window is not None}


def _clock_figures(name: str, window: Window, what: str, seconds: list[float]) -> Iterator[str]:
    """Yield a message if the `seconds` of a window's parts do not sum up to its wall-clock time.
    The message begins with `name`, the rank, and `what`, the parts, such as `steps`."""
    wall, total = window.seconds, sum(seconds)
    if wall > 0 and abs(total - wall) <= max(CLOCK_TOLERANCE * wall, CLOCK_SLACK_SECONDS):
        return
    tokens = sum(sample.real_tokens for sample in window.samples)
    by_rate = f"{tokens / wall * total:,.6g}" if wall > 0 else "no number of"
    yield (
        f"{name}{what} take {total:.6g} s, the wall clock says {wall:.6g} s: rate x time is "
        f"{by_rate} tokens, and {tokens:,} were counted"
    )


def _largest(metrics: Sequence[Metric], figure: Figure, kind: str) -> float | None:
    """Return the largest value in `metrics` of a memory figure that was measured as `kind` (any
    kind if empty); None without a value."""
    values = [
        metric.value
        for metric in metrics
        if metric.figure == figure and metric.value is not None and kind in ("", metric.kind)
    ]
    return max(values, default=None)
