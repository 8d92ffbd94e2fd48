"""A run on a GPU whose readings agree, to test what benchmarks make of its figures."""

from __future__ import annotations

from typing import Any

from analysis_factory import make_rank, make_result

from accel_bench.effective import EffectiveConfiguration
from accel_bench.flops.workload import Matmul, Workload
from accel_bench.result import Metric, Result, Sample, Window

H100 = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "uuid": "aaaa"}

STEPS = 20
SECONDS = 0.2

FIGURES = {
    "peak_memory_bytes": "peak_memory",
    "peak_reserved_bytes": "peak_reserved",
    "matmul_seconds": "matmul_seconds",
    "nvml_window_peak_memory_bytes": "peak_driver",
}


def metric(name: str, value: float | None, kind: str = "", **more: Any) -> Metric:
    facts = {"value": value, "unit": "1", "scope": "rank", "kind": kind, **more}
    return Metric.model_validate({"name": name, "figure": FIGURES.get(name), **facts})


def gpu_run(
    *,
    device_seconds: float | None = SECONDS,
    joules: float | None = 2000.0,
    watts: float | None = 500.0,
    nvml_bytes: int | None = 30,
    rows: int = 10**5,
) -> Result:
    """A run of 4 s on an H100 whose readings agree unless a test says otherwise.

    A step has 8192 tokens of a matrix of `rows` x 10,000, which trains.
    """
    sample = Sample(
        step=0,
        seconds=SECONDS,
        device_seconds=device_seconds,
        sequences=2,
        processed_tokens=8192,
        real_tokens=8192,
        supervised_tokens=8190,
        loss=1.0,
    )
    samples = tuple(sample.model_copy(update={"step": step}) for step in range(STEPS))
    matrix = Matmul(name="m", rows=rows, columns=10_000, input_needs_gradient=True)
    workload = Workload(matmuls=(matrix,), attentions=())
    changes = {
        "window": Window(started=10.0, ended=10.0 + STEPS * SECONDS, samples=samples),
        "workload": workload,
        "effective": EffectiveConfiguration(matmul_dtype="bfloat16"),
        "metrics": (
            metric("peak_memory_bytes", 10, "allocated"),
            metric("peak_reserved_bytes", 20, "reserved"),
            metric("matmul_seconds", 0.15),
        ),
    }
    rank = make_rank(device=H100).model_copy(update=changes)
    outside = (
        metric("nvml_window_peak_memory_bytes", None, "process", rank=0),
        metric("nvml_window_peak_memory_bytes", nvml_bytes, "device_above_start", rank=0),
        metric("gpu_board_energy_joules", joules, rank=0, reason="" if joules else "denied"),
        metric("gpu_board_power_watts", watts, rank=0),
    )
    return make_result(ranks=[rank]).model_copy(update={"metrics": outside})
