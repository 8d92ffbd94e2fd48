"""Utilization of a device by a run: model FLOP/s, MFU, HFU, fraction of the matmul roofline."""

from __future__ import annotations

from collections.abc import Callable

from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.catalog.hardware import peak_flops
from accel_bench.documents.base import Frozen
from accel_bench.flops.formulas import ByConvention, hardware_flops, model_flops
from accel_bench.flops.workload import Workload
from accel_bench.machine.devices import of_torch_type
from accel_bench.result import Result, Sample, Window


class Utilization(Frozen):
    """Utilization of one run's devices; all rates are per device.

    Seconds are taken from the slowest rank's window. A token's attention FLOPs grow with the length
    of its sequence, of which the mean over a step's tokens is token pairs / tokens: without padding
    for model FLOPs, with padding for hardware FLOPs. If batches do not count pairs, the mean is
    processed tokens / samples, which is the same for sequences of one length.
    """

    sequence_length: float
    """Mean length for attention FLOPs, over the window."""

    flops_per_token: ByConvention
    """Model FLOPs per real token, averaged over the window."""

    model_flops_per_second: ByConvention
    """Model FLOPs of real tokens per second, padding excluded."""

    hardware_flops_per_second: ByConvention | None
    """FLOPs per second of all processed tokens, padding and recomputation included; null if
    recomputation is unknown."""

    mfu: ByConvention | None
    """`model_flops_per_second` / peak; null if the peak is unknown. `causal` is the primary figure,
    `non_causal` is for comparison with older tables."""

    hfu: ByConvention | None
    """`hardware_flops_per_second` / peak; null if either is unknown."""

    fraction_of_matmul_roofline: float | None
    """Seconds of the step's matmuls back to back / seconds of a step; null if not measured.

    Only the model's matmuls count, without attention and recomputation.
    """


def utilization(result: Result, peak_flops_per_second: float | None) -> Utilization | None:
    """Return the utilization of a run; None without throughput or a known workload.

    `peak_flops_per_second` is one device's dense peak in the dtype of the model's matrix products.
    Without it, MFU and HFU are null and never guessed.
    """
    speed = run_throughput(result)
    measured = [(rank.window, rank.workload) for rank in result.ranks]
    ranks = [(window, workload) for window, workload in measured if window and workload]
    if speed is None or len(ranks) < len(measured):
        return None
    counted = [(rank.window, rank.workload) for rank in result.data_ranks]
    steps = [
        (sample, load) for window, load in counted if window and load for sample in window.samples
    ]
    if not all(sample.sequences and _is_multiple(sample, load) for sample, load in steps):
        return None
    seconds = max(window.seconds for window, _ in ranks)
    model = _work(steps, model_flops, padding=False)
    hardware = _work(steps, hardware_flops, padding=True)
    assert model is not None  # Model FLOPs are known of every workload.
    model_rate = model.times(1 / seconds / len(ranks))
    hardware_rate = hardware.times(1 / seconds / len(ranks)) if hardware else None
    peak = peak_flops_per_second
    return Utilization(
        sequence_length=_mean_length([sample for sample, _ in steps]),
        flops_per_token=model.times(1 / speed.real_tokens),
        model_flops_per_second=model_rate,
        hardware_flops_per_second=hardware_rate,
        mfu=model_rate.times(1 / peak) if peak else None,
        hfu=hardware_rate.times(1 / peak) if peak and hardware_rate else None,
        fraction_of_matmul_roofline=_fraction_of_matmul_roofline(result, seconds, ranks[0][0]),
    )


def _is_multiple(sample: Sample, load: Workload) -> bool:
    """Return whether a step has n times the tokens, samples and pairs of the batch in `load`."""
    elements = load.observed_elements
    if elements is None:
        return True
    batches, rest = divmod(sample.processed_tokens, elements)
    counted = ((sample.sequences, load.observed_samples),
               (sample.processed_pairs, load.observed_pairs))  # fmt: skip
    return not rest and all(
        actual is None or observed is None or actual == batches * observed
        for actual, observed in counted
    )


def mfu_6n(result: Result, peak_flops_per_second: float | None) -> float | None:
    """Return MFU as in older tables: 6 FLOPs for each matmul weight and token.

    Attention is excluded, and frozen weights count as trained. Source: Kaplan et al. (2020),
    "Scaling Laws for Neural Language Models".
    """
    speed = run_throughput(result)
    load = result.ranks[0].workload if result.ranks else None
    if speed is None or load is None or not peak_flops_per_second:
        return None
    flops = 6 * load.active_matmul_parameters * speed.tokens_per_second_per_device
    return flops / peak_flops_per_second


def _mean_length(samples: list[Sample]) -> float:
    pairs = [sample.real_pairs for sample in samples if sample.real_pairs is not None]
    if len(pairs) == len(samples):
        return sum(pairs) / sum(sample.real_tokens for sample in samples)
    return sum(s.processed_tokens for s in samples) / sum(s.sequences for s in samples)


def _work(
    steps: list[tuple[Sample, Workload]],
    flops: Callable[[Workload, float], ByConvention | None],
    padding: bool,
) -> ByConvention | None:
    """Return the FLOPs of all ranks' tokens, padding included if `padding`; None if unknown.
    `flops` returns the FLOPs of one token, from the workload and the length of its sequence."""
    total = ByConvention(causal=0, non_causal=0)
    for sample, workload in steps:
        tokens, pairs = sample.real_tokens, sample.real_pairs
        if padding:
            tokens, pairs = sample.processed_tokens, sample.processed_pairs
        of_a_token = flops(workload, _length(sample, pairs, tokens))
        if of_a_token is None:
            return None
        total = total.plus(of_a_token.times(tokens))
    return total


def _length(sample: Sample, pairs: int | None, tokens: int) -> float:
    """Return a step's mean sequence length for attention FLOPs: `pairs` of tokens in a sequence per
    token or, if these are None, tokens per sample. With a sliding window shorter than sequences of
    unequal lengths, the mean is an upper bound."""
    if pairs is None or tokens == 0:
        return sample.processed_tokens / sample.sequences
    return pairs / tokens


def _fraction_of_matmul_roofline(result: Result, seconds: float, window: Window) -> float | None:
    """Return the slowest rank's matmul seconds per step, divided by the mean step of the window."""
    values = [
        next((m.value for m in rank.metrics if m.figure == "matmul_seconds"), None)
        for rank in result.ranks
    ]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return max(known) / (seconds / len(window.samples))


def devices_used(run: Result | None) -> int | None:
    """Return the number of distinct devices, or of ranks on a CPU; None if a device is unknown."""
    if run is None:
        return None
    used: set[tuple[str | int, ...]] = set()
    for rank in run.ranks:
        device = rank.device
        if device is None:
            return None
        own = (device.uuid,) if device.uuid else (device.name, device.index)
        used.add(("cpu", rank.rank) if device.type == "cpu" else own)
    return len(used)


def peak_flops_of(result: Result) -> float | None:
    """Return the dense peak of one device in FLOP/s, in the effective dtype of the run.

    Return None and never a guess if device or dtype are unknown. All ranks must have the same
    device and dtype.
    """
    kinds = set()
    for rank in result.ranks:
        device, dtype = rank.device, rank.effective.matmul_dtype
        if device is None or device.type == "cpu" or not device.name or not dtype:
            return None
        precision = rank.effective.float32_matmul_precision or "highest"
        kinds.add((device.type, device.name, dtype, precision))
    if len(kinds) != 1:
        return None
    ((torch_type, name, dtype, precision),) = kinds
    described = of_torch_type(torch_type, result.experiment.scenario.resources.device)
    return described.peak_flops(name, dtype) or peak_flops(name, dtype, precision)
