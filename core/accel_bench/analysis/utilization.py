"""How much of a device a run used: model FLOP/s, MFU, HFU and the share of what is achievable."""

from __future__ import annotations

from accel_bench.analysis.throughput import run_throughput
from accel_bench.flops import ByConvention, hardware_flops, model_flops
from accel_bench.result import RankResult, Result, Sample, Window
from accel_bench.scenario.base import Frozen
from accel_bench.workload import Workload

MATMUL_SECONDS = "matmul_seconds"
"""Name of the metric that says how long the matmuls of a step take when nothing else runs."""


class Utilization(Frozen):
    """One run's use of its devices; all rates are per device.

    Seconds are those of the slowest rank's window. Attention's length is, for each step, processed
    tokens / samples: the padded length, or the mean of the documents where several are packed into
    one sequence that cannot see one another. (FLOPs grow with the mean of the squares, so documents
    of very different lengths are counted somewhat too low.)
    """

    sequence_length: float
    """Mean length by which attention was counted, over the window's samples."""

    flops_per_token: ByConvention
    """Model FLOPs for a real token, mean over the window."""

    model_flops_per_second: ByConvention
    """Model FLOPs of real tokens per second: padding, although computed, is no use to the model."""

    hardware_flops_per_second: ByConvention
    """Model FLOPs and recomputation of all processed tokens, padding too, per second."""

    mfu: ByConvention | None
    """`model_flops_per_second` / peak; null where the peak is not known. `causal` is the primary
    figure, `non_causal` is for comparison with older tables."""

    hfu: ByConvention | None
    """`hardware_flops_per_second` / peak; null where the peak is not known."""

    share_of_achievable: float | None
    """Seconds of the step's matmuls back to back / seconds of a step; null where not measured.

    The matmuls of the model only, without attention and without recomputation.
    """


def utilization(result: Result, peak_flops_per_second: float | None) -> Utilization | None:
    """Return how a run used its devices, or None where it has no numbers or no workload is known.

    `peak_flops_per_second` is one device's dense peak in the dtype of the model's products; None
    gives null and never a guess.
    """
    speed = run_throughput(result)
    found = [(rank.window, rank.workload) for rank in result.ranks]
    ranks = [(window, workload) for window, workload in found if window and workload]
    if speed is None or len(ranks) < len(found):
        return None
    steps = [(sample, load) for window, load in ranks for sample in window.samples]
    if not all(sample.samples for sample, _ in steps):
        return None
    seconds = max(window.ended - window.started for window, _ in ranks)
    model, hardware = _model_work(steps), _hardware_work(steps)
    model_rate = model.times(1 / seconds / len(ranks))
    hardware_rate = hardware.times(1 / seconds / len(ranks))
    peak = peak_flops_per_second
    return Utilization(
        sequence_length=speed.processed_tokens / sum(sample.samples for sample, _ in steps),
        flops_per_token=model.times(1 / speed.real_tokens),
        model_flops_per_second=model_rate,
        hardware_flops_per_second=hardware_rate,
        mfu=model_rate.times(1 / peak) if peak else None,
        hfu=hardware_rate.times(1 / peak) if peak else None,
        share_of_achievable=_share_of_achievable(result, seconds, ranks[0][0]),
    )


def _model_work(steps: list[tuple[Sample, Workload]]) -> ByConvention:
    """Model FLOPs of the real tokens of all ranks."""
    total = ByConvention(causal=0, non_causal=0)
    for sample, workload in steps:
        total = total.plus(model_flops(workload, _length(sample)).times(sample.real_tokens))
    return total


def _hardware_work(steps: list[tuple[Sample, Workload]]) -> ByConvention:
    """FLOPs of the processed tokens of all ranks, those that are computed again included."""
    total = ByConvention(causal=0, non_causal=0)
    for sample, workload in steps:
        total = total.plus(hardware_flops(workload, _length(sample)).times(sample.processed_tokens))
    return total


def _length(sample: Sample) -> float:
    """Length of the step's sequences."""
    return sample.processed_tokens / sample.samples


def _share_of_achievable(result: Result, seconds: float, window: Window) -> float | None:
    """The slowest rank's matmuls of a step against a mean step of the window."""
    measured = [_matmul_seconds(rank) for rank in result.ranks]
    known = [value for value in measured if value is not None]
    if not known or len(known) < len(measured):
        return None
    return max(known) / (seconds / len(window.samples))


def _matmul_seconds(rank: RankResult) -> float | None:
    """The metric of one rank."""
    return next((m.value for m in rank.metrics if m.name == MATMUL_SECONDS), None)
