"""A benchmark built by an executor, with its metrics and check, and the engine that calls it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch  # noqa: F401 - core sets it up when this module has been imported

from accel_bench import Metric, Run, Stopwatch, Window
from accel_bench.errors import InvalidRunError
from accel_bench_op import ComputeType, as_dtype, find_benchmarks, find_executors
from accel_bench_op.cell_impl import build_cell
from accel_bench_op.engine import OpOptions
from accel_bench_op.roofline_impl import above_peak, cache_bytes, declared_hardware

RATES = (
    ("flops_per_second", "FLOP/s", "flops_per_second"),
    ("bytes_per_second", "B/s", "bytes_per_second"),
    ("fraction_of_roofline", "1", "roofline_share"),
)
"""Metrics: name, unit, and key of the value in `roofline_figures`."""


class BuiltOperation:
    """A benchmark at one size, built by an executor."""

    def __init__(self, run: Run, options: OpOptions) -> None:
        dtype = as_dtype(run.scenario.model.dtype)
        kind = find_benchmarks()[options.benchmark]
        benchmark = kind.at_size(options.size, device=str(run.device), dtype=dtype)
        executor = find_executors()[options.executor]
        self.size = options.size
        self.compute_type = ComputeType(options.compute_type)
        self.cell = build_cell(benchmark, executor, self.compute_type)
        self.call = self.cell.timed_call()
        self._too_fast = ""

    def metrics(self, window: Window) -> Iterator[Metric]:
        """Yield the rates of an average call in the window, and the peak memory of one call."""
        seconds = window.seconds / sum(sample.real_tokens for sample in window.samples)
        self.call.close()
        figures, device = self.cell.figures(seconds), self.cell.device
        known = declared_hardware(device)
        self._too_fast = above_peak(figures, self.cell.dtype, known, cache_bytes(device))
        for name, unit, key in RATES:
            value = figures.get(key)
            yield Metric(name=name, value=value, unit=unit, scope="rank", better="higher")
        yield Metric(
            name="call_peak_bytes",
            value=self.cell.peak_memory(),
            unit="bytes",
            scope="rank",
            better="lower",
        )

    def check(self) -> dict[str, Any]:
        """Compare outputs and gradients with float64; return their distance as JSON evidence.

        A batch other than the timed one is compared, which reveals cached results. Raises
        InvalidRunError for a distance above the tolerance, an undecided check, and a rate above the
        device's peak.
        """
        if self._too_fast:
            raise InvalidRunError([self._too_fast])
        gradients = self.compute_type is not ComputeType.INFERENCE
        result = self.cell.check()
        if reason := result.reason or result.undecided:
            raise InvalidRunError([reason.removeprefix("invalid: ")])
        worst = max(result.distances, key=lambda name: result.distances[name], default="")
        check = {
            "largest": result.distance,
            "tolerance": result.tolerance,
            "of": worst,
            "tensors": len(result.distances),
            "size": result.size or self.size,
        }
        what = "output and gradients" if gradients else "output"
        what += f" at size {result.size}" if result.size else ""
        what += " with eager's choices" if result.same_choices else ""
        within = f"{what} within {result.distance:.2g} of eager in float64"
        warm = "; caches are not emptied between calls"
        summary = f"{within} ({result.tolerance:g} allowed){warm}"
        return {"summary": summary, "check": check, "cache_flushed": False}


class OperationEngine:
    """Engine whose step calls the operation; a backward pass's preparation is not timed."""

    def __init__(self, run: Run) -> None:
        self._operation: BuiltOperation = run.model
        self._batches = run.batches
        self._loss = run.loss
        self._accumulation = run.scenario.train.gradient_accumulation

    def run(self, stopwatch: Stopwatch) -> None:
        """Call the operation in steps until the stopwatch stops."""
        call = self._operation.call
        prepares = self._operation.compute_type is ComputeType.TRAINING_BACKWARD
        batches = list(itertools.islice(self._batches, self._accumulation))
        calls = sum(batch.sequences for batch in batches)
        while stopwatch.running:
            if prepares:
                call.prepare()
                stopwatch.resume()
            for _ in range(calls):
                call.run()
            stopwatch.lap(batches, self._loss(self._operation, {}, calls))
