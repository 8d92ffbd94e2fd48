"""One step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import PartBenchmark
from accel_bench_op.benchmarks.shapes import MIXED_SIZES


class AdamWStep(PartBenchmark):
    """Torch's AdamW over the matrices of one block; there is nothing to differentiate."""

    name = "adamw_step"
    description = "One step of torch's AdamW over the matrices of a block."
    operation = "adamw_step"
    sizes = MIXED_SIZES
    requires_grad = False

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the gradient of each matrix."""
        sizes = enumerate(self.shape.block_matrices)
        return tuple(self.activations(*size, seed=seed) for seed, size in sizes), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module that holds the matrices and steps with the gradients that it is given."""
        return self.module(impl.optimizers.AdamWStep, self.shape.block_matrices)

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same in float64, the optimizer's state included."""
        return impl.optimizers.in_float64(fn)

    def bytes_moved(self) -> int | None:
        """Return those of weights and two moments, read and written, and of gradients."""
        return self.moved(7 * sum(rows * columns for rows, columns in self.shape.block_matrices))
