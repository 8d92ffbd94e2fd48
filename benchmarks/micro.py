"""Time micro-benchmarks at real widths on few tokens: eager and compiled in turns, with samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from accel_bench_op import Benchmark, ComputeType, Executor, find_benchmarks, find_executors
from accel_bench_op.cell_impl import Cell, build_cell, free_memory

from benchmarks.entry import Counts, Entry, Request, interleave, this_machine

SIDES = ("eager", "inductor")
"""Executors that are compared; the first has to compute everything."""

FEW_TOKENS = {"batch": 1, "length": 128}
"""What a CPU of two cores multiplies with the matrices of 7B models within a second."""

MODELS = ("gpt2", "llama-2-7b", "mistral-7b")
"""Sizes, of which the first that a benchmark has is measured."""

TOO_LARGE = frozenset({"llama", "mistral", "mixtral", "mixtral_block", "grouped_experts"})
"""Benchmarks whose weights and gradients do not fit into the memory of an ordinary machine."""

WARM_UP_CALLS = 2


def measure_micro(asked: Request) -> Iterator[Entry]:
    """Measure the seconds of every benchmark in the box that fits, in each compute type.

    Yield an entry for each cell; known ones are not measured again.
    """
    for name, kind in find_benchmarks().items():
        if name not in TOO_LARGE and kind.__module__.startswith("accel_bench_op."):
            yield from _measure(kind, asked)


def _measure(kind: type[Benchmark], asked: Request) -> Iterator[Entry]:
    """Measure one benchmark; where it cannot be had here, or has no backward, it has no entry."""
    size = next((model for model in MODELS if model in kind.sizes), "tiny")
    settings: Mapping[str, Any] = FEW_TOKENS if size != "tiny" else {}
    executors = find_executors()
    for compute_type in ComputeType:
        if _name(kind, compute_type, size) in asked.known:
            continue
        one = kind.at_size(size, device="cpu", **settings)
        sides = {name: executors[name] for name in SIDES if not executors[name].supports(one)}
        no_backward = not one.requires_grad and compute_type is not ComputeType.INFERENCE
        if not sides or no_backward:
            continue
        yield _entry(kind, size, settings, compute_type, sides, asked.counts)
        free_memory()


def _name(kind: type[Benchmark], compute_type: ComputeType, size: str) -> str:
    return f"{kind.name}[{compute_type.value}-{size}]"


def _entry(  # noqa: PLR0913, PLR0917 - what makes a cell, and how often it is measured
    kind: type[Benchmark],
    size: str,
    settings: Mapping[str, Any],
    compute_type: ComputeType,
    executors: Mapping[str, Executor],
    counts: Counts,
) -> Entry:
    """Measure the executors of one cell in turns; one that cannot compute it is named in a note."""
    machine = this_machine()
    tokens = f", {FEW_TOKENS['length']} tokens" if settings else ""
    notes = [f"{kind.description} Size {size}{tokens}, float32."]
    cells, timed = {}, {}
    for name, executor in executors.items():
        try:
            one = kind.at_size(size, device="cpu", **settings)
            cell = build_cell(one, executor, compute_type)
            if reason := cell.check().reason:
                raise RuntimeError(reason)
            timed[f"{name}_seconds"] = _timed(cell)
            cells[name] = cell
        except Exception as error:
            if name == SIDES[0]:
                raise
            notes.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    samples = interleave(timed, counts.rounds)
    for name, cell in cells.items():
        notes.append(_rates(name, cell, samples[f"{name}_seconds"]))
    return Entry(
        name=_name(kind, compute_type, size),
        value=1e3 * median(samples[f"{SIDES[0]}_seconds"]),
        unit=f"milliseconds, {SIDES[0]}",
        goal=None,
        goal_is="at most",
        notes=tuple(notes),
        samples=samples,
        machine=machine,
    )


def _timed(cell: Cell) -> Callable[[], float]:
    """Return a function that times one call; the first calls, which compile, are made here."""
    call = cell.timed_call()

    def once() -> float:
        call.prepare()
        started = time.perf_counter()
        call.run()
        return time.perf_counter() - started

    for _ in range(WARM_UP_CALLS):
        once()
    return once


def _rates(name: str, cell: Cell, seconds: tuple[float, ...]) -> str:
    """Return a sentence with the median and the rates that it means."""
    middle = median(seconds)
    figures = cell.figures(middle)
    rates = [
        f"{figures[key] / 1e9:.4g} {unit}"
        for key, unit in (("flops_per_second", "GFLOP/s"), ("bytes_per_second", "GB/s"))
        if key in figures
    ]
    if "roofline_share" in figures:
        rates.append(f"{figures['roofline_share']:.3f} of the roofline measured here")
    return f"{name}: median {middle * 1e3:.4g} ms" + "".join(f", {rate}" for rate in rates) + "."
