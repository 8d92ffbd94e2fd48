"""What a GPU would give: a run whose readings agree, and a stream whose events obey CUDA's rule."""

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


class Stream:
    """A device's work, one event a second, of which none is done before it was waited for.

    An event of CUDA completes a while after it was recorded, also where the device has nothing else
    to do, and no time can be taken from it before: here that while lasts until `synchronize`.
    """

    def __init__(self) -> None:
        self.recorded = self.completed = 0

    def synchronize(self) -> None:
        """Wait for all events."""
        self.completed = self.recorded

    def make_event(self) -> StreamEvent:
        """Return an event of this stream."""
        return StreamEvent(self)


class StreamEvent:
    """An event, as `torch.cuda.Event(enable_timing=True)` is one."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._second = stream, 0

    def record(self) -> None:
        """Enqueue it, a second after the one before."""
        self._stream.recorded += 1
        self._second = self._stream.recorded

    def elapsed_time(self, later: StreamEvent) -> float:
        """Return the milliseconds to a later event; refuse as CUDA does."""
        if not 0 < max(self._second, later._second) <= self._stream.completed:
            raise RuntimeError("CUDA error: device not ready")
        return 1e3 * (later._second - self._second)


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
