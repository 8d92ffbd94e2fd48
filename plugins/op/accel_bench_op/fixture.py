"""Timing of benchmarks with pytest-benchmark's fixture `benchmark`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.devices import of_torch_type
from accel_bench_op.benchmark import Benchmark, benchmark_of
from accel_bench_op.compute import ComputeType, NoBackwardError, TimedCall
from accel_bench_op.executors import Executor, no_backward
from accel_bench_op.settings import read_arguments, reads_flush

if TYPE_CHECKING:
    from accel_bench_op.cell_impl import Cell
    from accel_bench_op.check_impl import Check

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

MOST_ROUNDS = 1000

MOST_CALLS = 1000
"""Maximum number of calls in a round."""

ROUND_SECONDS = 1e-3
"""Minimum seconds of a round without cache flush; launching a kernel takes 1e-5."""

WARM_UP_CALLS = 3


def parametrize_compute_type(test: FunctionT) -> FunctionT:
    """Parametrize a test by `compute_type`: inference, training forward and training backward."""
    import pytest

    return pytest.mark.parametrize("compute_type", tuple(ComputeType), ids=str)(test)


def benchmark_for_compute_type(
    compute_type: ComputeType, benchmark: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    """Time a callable in one compute type with the fixture `benchmark`.

    Backward passes are timed alone: before each round the graph is rebuilt and gradients are
    cleared, outside the clock. A batch of a `Benchmark`'s `make_batch()` is first used to compare
    with the result of its `fn()` in float64; a difference fails the test. Any other batch is timed
    as `not compared`. The test is skipped if nothing requires a gradient, or if memory runs out.
    """
    from accel_bench_op.cell_impl import Cell

    owner = benchmark_of((args, kwargs))
    cell = Cell(owner or _Unknown(fn), fn, (args, kwargs), compute_type)
    with _skipping_without_memory():
        _time(benchmark, cell, checked=owner is not None)


def run_cell(
    benchmark: Any, kind: type[Benchmark], size: str, executor: Executor, compute_type: ComputeType
) -> None:
    """Build a benchmark at a size, check it, and time it with the fixture `benchmark`.

    The test is skipped if the executor cannot run the benchmark here, or if the benchmark has no
    backward pass for the compute type.
    """
    import pytest

    from accel_bench_op.cell_impl import build_cell

    bench = kind.at_size(size, **read_arguments())
    if reason := executor.supports(bench) or no_backward(bench, compute_type):
        pytest.skip(reason)
    with _skipping_without_memory():
        cell = build_cell(bench, executor, compute_type)
        _time(benchmark, cell, checked=True)


class _Unknown(Benchmark):
    """Benchmark for a callable that a test passes without a `Benchmark`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self._fn = fn

    def make_batch(self) -> tuple[list[Any], dict[str, Any]]:
        """Return an empty batch, since the test gives the batch."""
        return [], {}

    def fn(self) -> Callable[..., Any]:
        """Return the callable that was given."""
        return self._fn


@contextmanager
def _skipping_without_memory() -> Iterator[None]:
    """Skip the test if memory runs out in the block, and free memory after the block."""
    import pytest

    from accel_bench_op.cell_impl import free_memory, release_frames, why_no_memory

    reason = ""
    try:
        yield
    except BaseException as error:
        reason = why_no_memory(error)
        release_frames(error)
        if not reason:
            raise
    finally:
        free_memory()
    if reason:
        pytest.skip(reason)


class EventMark:
    """Time mark in a device's queue of work; the difference of two marks is in seconds."""

    def __init__(self, device: DeviceType) -> None:
        self._device = device
        self._event = device.make_event()
        self._event.record()

    def __sub__(self, earlier: EventMark) -> float:
        """Return the seconds from an earlier mark to this one, after waiting for the device."""
        self._device.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def synchronized_perf_counter(device: DeviceType) -> float:
    """Return the host's clock in seconds, after all work of the device is done."""
    device.synchronize()
    return time.perf_counter()


def clock_for(device: DeviceType) -> tuple[str, Callable[[], Any]]:
    """Return the clock for a type of device: its name, and the function that reads it.

    A device without timing events is timed by the host's clock, read after waiting for the device.
    """
    if device.on_host:
        return "wall", time.perf_counter
    kind = device.torch_type
    if device.make_event() is not None:
        return f"{kind} events", partial(EventMark, device)
    return f"{kind} wall", partial(synchronized_perf_counter, device)


def with_flushed_cache(prepare: Callable[[], None], device: str) -> Callable[[], None]:
    """Return a function that calls `prepare` and then overwrites the device's L2 cache."""
    import torch

    from accel_bench_op.roofline_impl import cache_bytes

    size = max(4 * (cache_bytes(device) or 0), 2**26)
    buffer = torch.empty(size, dtype=torch.int8, device=device)

    def prepare_and_flush() -> None:
        prepare()
        buffer.zero_()

    return prepare_and_flush


def _time(benchmark: Any, cell: Cell, checked: bool) -> None:
    """Time a cell, and add its rates, memory and settings to `extra_info`.

    With `checked`, the cell is first compared with float64; a wrong result fails the test.
    """
    import pytest

    call, info, flush = cell.timed_call(), benchmark.extra_info, reads_flush()
    try:
        call.prepare()  # fails where there is no backward pass
        call.close()
        check = cell.check() if checked else None
        if check and check.reason:
            pytest.fail(check.reason, pytrace=False)
        _pedantic(benchmark, call, cell.device, flush)
        call.close()
        info |= _compared(check)
        if benchmark.enabled:
            info |= _figures(benchmark, cell, flush)
    except NoBackwardError as error:
        pytest.skip(str(error))
    finally:
        call.close()
        # A cell without a time is no oversight of its test.
        benchmark._mode = benchmark._mode or "check"


def _compared(check: Check | None) -> dict[str, Any]:
    """Return a check's entries in pytest-benchmark's `extra_info`: outcome, distance, tolerance."""
    if check is None:
        return {"outcome": "not compared"}
    at: dict[str, Any] = {"compared_at": check.size} if check.size else {}
    if check.same_choices:
        at["choices"] = "those of eager"
    if check.undecided:
        return {"outcome": check.undecided, **at}
    return {"outcome": "ok", "distance": check.distance, "tolerance": check.tolerance, **at}


def _pedantic(benchmark: Any, call: TimedCall, device: str, flush: bool) -> None:
    """Time a call in rounds with the fixture `benchmark`.

    On a CPU, or if each call needs a preparation, a round has one call, otherwise several. With
    `flush`, the device's cache is overwritten before each round.
    """
    kind, _, index = device.partition(":")
    known = of_torch_type(kind)
    setup = call.prepare if call.compute_type is ComputeType.TRAINING_BACKWARD else None

    def run() -> None:
        # Without a result, which pytest-benchmark would keep through the next round.
        call.run()

    if not benchmark.enabled:
        benchmark.pedantic(run, setup=setup)
        return
    if not known.on_host:
        if index:
            known.use(int(index))  # events are marked on the current device
        benchmark._timer = clock_for(known)[1]
        if flush:
            setup = with_flushed_cache(call.prepare, device)
    seconds = _warm_up(call, benchmark._timer)
    calls = 1
    if not known.on_host and setup is None:
        calls = min(MOST_CALLS, math.ceil(ROUND_SECONDS / seconds))
    fitting = int(benchmark._max_time / (seconds * calls))
    rounds = min(MOST_ROUNDS, max(benchmark._min_rounds, fitting))
    benchmark.pedantic(run, setup=setup, rounds=rounds, iterations=calls)


def _warm_up(call: TimedCall, clock: Callable[[], Any]) -> float:
    """Call a few times; return the seconds of the fastest call, its preparation included."""
    fastest = math.inf
    for _ in range(WARM_UP_CALLS):
        started = time.perf_counter()
        call.prepare()
        before = clock()
        call.run()
        float(clock() - before)  # waits for the device
        fastest = min(fastest, time.perf_counter() - started)
    return max(fastest, 1e-9)


def _figures(benchmark: Any, cell: Cell, flush: bool) -> dict[str, Any]:
    """Return a timed cell's entries in pytest-benchmark's `extra_info`: rates, memory, settings."""
    device = of_torch_type(cell.device.partition(":")[0])
    return {
        "device": cell.device,
        "dtype": cell.dtype,
        "clock": clock_for(device)[0],
        "cache_flushed": flush and not device.on_host,
        "peak_memory_bytes": cell.peak_memory(),
        **cell.figures(benchmark.stats.stats.median),
    }
