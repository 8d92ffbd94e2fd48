"""Check that a GPU's figures agree: clocks, memory, energy, and shares of its peak."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from accel_bench.analysis.checks.audit import audit
from accel_bench.analysis.metrics.memory import SOURCES, largest
from accel_bench.analysis.metrics.utilization import peak_flops_of, utilization
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Result
from accel_bench.store.database import open_store
from benchmarks.entry import this_machine
from benchmarks.figure import Figure, clock_figure, energy_figure, ratio_figure
from benchmarks.gpu_product import LARGE, SMALL, product_figures

SCENARIO = "llama-2-7b-lora"
"""Scenario whose stored runs are checked."""

AT_LEAST = (1.0, None)
"""Limits of a quantity that includes the other."""

SHARES = (0.02, 1.0)
"""Shares of the peak or of a step: above 1 work is counted that is not done."""


class Numbers(Frozen):
    """Output of `python -m benchmarks.gpu_numbers`."""

    device_type: str
    """`cuda` or `cpu`."""

    device: str
    """Name of the device."""

    torch: str
    """torch's version."""

    figures: tuple[Figure, ...]
    """Ratios of the product, then of every stored run."""

    problems: tuple[str, ...]
    """Other problems of the stored runs: reasons of their status, invariants they break."""

    machine: dict[str, JsonValue]
    """Where it was measured, read just before."""


def main() -> None:
    """Measure the product, read the stored runs, and print all figures as one document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_numbers", description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("results", type=Path, help=f"results folder with runs of {SCENARIO}")
    parser.add_argument("--small", action="store_true", help="only show that it works")
    asked = parser.parse_args()
    print(read_numbers(asked.device, asked.results, asked.small).model_dump_json(indent=1))


def read_numbers(device: str, results: Path, small: bool) -> Numbers:
    """Return all figures. Raises StoreError where the folder holds no results."""
    machine = this_machine()
    name, uuid = device, ""
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name, uuid = properties.name, str(properties.uuid)
    product = product_figures(device, name, uuid, SMALL if small else LARGE)
    with open_store(results, write=False) as store:
        stored = store.results(scenario=SCENARIO)
    runs = [run for run in stored if run.status.completed]
    return Numbers(
        device_type=device,
        device=name,
        torch=torch.__version__,
        figures=(*product, *(figure for run in runs for figure in run_figures(run))),
        problems=tuple(problem for run in stored for problem in problems_of(run)),
        machine=machine,
    )


def run_figures(run: Result) -> Iterator[Figure]:
    """Yield what a run of one rank measured in two ways, and its shares of the device's peak."""
    window = run.ranks[0].window
    if window is None:
        return
    subject, seconds = subject_of(run), window.ended - window.started
    yield clock_figure(subject, [step.device_seconds for step in window.samples], seconds)
    yield from memory_figures(run)
    joules, watts = (
        metric_of(run, "gpu_board_energy_joules"),
        metric_of(run, "gpu_board_power_watts"),
    )
    boards = [metric for metric in run.metrics if metric.name.startswith("gpu_board_")]
    reason = "; ".join(dict.fromkeys(metric.reason for metric in boards if metric.reason))
    yield energy_figure(subject, joules, watts, seconds, reason or "nvml gave no number")
    yield from share_figures(run)


def memory_figures(run: Result) -> Iterator[Figure]:
    """Yield ratios of the window's peak: the driver's >= the allocator's >= that of tensors."""
    peaks = {name: peak_bytes(run, name) for name in ("nvml", "reserved", "allocated")}
    for more, less in (("nvml", "reserved"), ("reserved", "allocated")):
        larger, smaller = peaks[more], peaks[less]
        yield ratio_figure(
            f"{more}_over_{less}",
            subject_of(run),
            larger / smaller if larger is not None and smaller else None,
            AT_LEAST,
            {f"{more}_bytes": [larger], f"{less}_bytes": [smaller]},
            f"{more if larger is None else less} is not known",
        )


def peak_bytes(run: Result, name: str) -> int | None:
    """Return the window's peak in bytes, by the best available way of measuring."""
    source = SOURCES[name]
    found = (largest(run, source.window, kind) for kind in source.kinds)
    return next((one[0] for one in found if one is not None), None)


def share_figures(run: Result) -> Iterator[Figure]:
    """Yield MFU, HFU, and the share of a step that its products need by themselves."""
    peak = peak_flops_of(run)
    used = utilization(run, peak)
    model = used.model_flops_per_second.causal if used else None
    hardware = getattr(used.hardware_flops_per_second, "causal", None) if used else None
    roofline = used.fraction_of_matmul_roofline if used else None
    for name, rate in (("mfu", model), ("hfu", hardware)):
        yield ratio_figure(
            name,
            subject_of(run),
            rate / peak if rate is not None and peak else None,
            SHARES,
            {"flops_per_second": [rate], "peak_flops_per_second": [peak]},
            "no peak is known for its device and dtype",
        )
    yield ratio_figure(
        "fraction_of_matmul_roofline",
        subject_of(run),
        roofline,
        SHARES,
        {"matmul_seconds": [metric_of(run, "matmul_seconds")]},
        "the metric matmul-roofline gave no number",
    )


def problems_of(run: Result) -> Iterator[str]:
    """Yield reasons of a run's status, and invariants that it breaks."""
    subject = subject_of(run)
    yield from (f"{subject}: {run.status.value}: {reason}" for reason in run.reasons)
    yield from (f"{subject}: self-audit, {one.invariant}: {one.figures}" for one in audit(run))


def metric_of(run: Result, name: str) -> float | None:
    """Return a metric of the run's only device, measured within the run or from outside."""
    seen = [*run.metrics, *(metric for rank in run.ranks for metric in rank.metrics)]
    return next((m.value for m in seen if m.name == name and m.value is not None), None)


def subject_of(run: Result) -> str:
    """Return the run's name for a figure: `lora (round 1)`."""
    return f"{run.experiment.stack.name} (round {run.round + 1})"


if __name__ == "__main__":
    main()
