"""Sketch by how much training changed each trained tensor, in a few dozen numbers a tensor.

A sketch sums a tensor's elements in buckets, each element with a random sign that depends on the
tensor's name and the element's place alone (Charikar, Chen and Farach-Colton, 2002). It is linear:
the sketch after training less that before is the sketch of the change, so no copy of the weights is
kept, and the squared difference of two sketches estimates the squared distance of two changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from accel_bench.effective import plain_name
from accel_bench.modeling.kept_elsewhere import elements_of
from accel_bench.modeling.random_weights import seed_of
from accel_bench.modeling.sharding import whole
from accel_bench.modeling.tensors import has_values
from accel_bench.result import SKETCH_BUCKETS, TensorUpdate, WeightUpdate
from accel_bench.run import Run

ROW = SKETCH_BUCKETS * 131
"""Elements that are summed with one more sign each; both factors are prime, so that no row of a
matrix, of a width that is round, falls into few buckets."""

BLOCK_ROWS = 256
"""Rows that are read at once: 8 MB in float64."""


class UpdateSketch:
    """Sketches the trained tensors of a run when it is made, and again when `finish` is called.

    Both are outside of all windows. What trains is what requires a gradient at the first call;
    sharded tensors are gathered one after the other.
    """

    def __init__(self, run: Run) -> None:
        started = time.perf_counter()
        self._run = run
        trained = {name: p for name, p in _parameters(run) if p.requires_grad}
        self._elements = {name: elements_of(p) for name, p in trained.items()}
        self._before = {name: sketch(name, p) for name, p in trained.items()}
        self._seconds = time.perf_counter() - started

    def finish(self, steps: int) -> WeightUpdate:
        """Return the update after so many steps; a tensor that is gone, or not finite, is left out.

        Ranks other than the first return what compares replicas, and no tensors.
        """
        started = time.perf_counter()
        now = {name: sketch(name, p) for name, p in _parameters(self._run) if name in self._before}
        tensors = {
            name: TensorUpdate(elements=self._elements[name], sketch=_numbers(change))
            for name, after in now.items()
            if bool((change := after - self._before[name]).isfinite().all())
        }
        return WeightUpdate(
            steps=steps,
            trained_tensors=len(self._before),
            trained_elements=sum(self._elements.values()),
            tensors=tensors if self._run.rank == 0 else {},
            weights=_together(now),
            weights_before=_together(self._before),
            seconds=self._seconds + time.perf_counter() - started,
        )


@torch.no_grad()
def sketch(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the signed sums of a tensor's elements, of shape (SKETCH_BUCKETS,), float64, on the
    CPU."""
    flat = whole(tensor).detach().reshape(-1)
    rows = -(-flat.numel() // ROW)
    signs = _signs(name, ROW + rows).to(flat.device)
    columns, of_rows = signs[:ROW], signs[ROW:]
    sums = torch.zeros(ROW, dtype=torch.float64, device=flat.device)
    for first in range(0, rows, BLOCK_ROWS):
        block = flat[first * ROW : (first + BLOCK_ROWS) * ROW].double()
        whole_rows = block.numel() // ROW
        sums += of_rows[first : first + whole_rows] @ block[: whole_rows * ROW].view(-1, ROW)
        rest = block[whole_rows * ROW :]
        if rest.numel():
            sums[: rest.numel()] += of_rows[first + whole_rows] * rest
    return (sums * columns).view(-1, SKETCH_BUCKETS).sum(0).cpu()


def _signs(name: str, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed_of(0, name))
    bits = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int8)
    return bits.double() * 2 - 1


def _parameters(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield the model's parameters by the names that they have without wrappers."""
    for name, parameter in run.unwrapped_model.named_parameters():
        if parameter.is_floating_point() and has_values(parameter):
            yield plain_name(name), parameter


def _together(sketches: Mapping[str, torch.Tensor]) -> tuple[float, ...]:
    """Return the sketch of all tensors as one."""
    total = sum(sketches.values(), torch.zeros(SKETCH_BUCKETS, dtype=torch.float64))
    return _numbers(total.nan_to_num())


def _numbers(values: torch.Tensor) -> tuple[float, ...]:
    """Return values with seven digits, which is what a row stores."""
    return tuple(float(f"{value:.7g}") for value in values.tolist())
