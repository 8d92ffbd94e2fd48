"""Base of the benchmarks here: an operation, a block or a model at the shape of a known model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accel_bench_op.benchmark import Benchmark, BenchmarkArg
from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.shapes import find_shape

if TYPE_CHECKING:
    import torch

TOLERANCE: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 5e-5,
    "bfloat16": 3e-2,
    "float16": 4e-3,
}
"""Largest error against float64, relative to the largest value of a tensor.

A product over n elements is off by about sqrt(n) roundings in the dtype that it is added up in,
float32 in all but float64: 1e-5 for the 11,008 of a Llama. This leaves a factor of five. In 16 bits
the inputs of each operation are rounded, to 2**-9 and 2**-12 of them, and a block has up to eight
operations one after the other.
"""


class PartBenchmark(Benchmark):
    """Benchmark of a part of a model, at the shape of a model that is known by name."""

    args: tuple[BenchmarkArg, ...] = (
        BenchmarkArg("model", "Model whose shape it is, of `shapes.SHAPES`; null for a tiny one."),
        BenchmarkArg("batch", "Sequences of a batch; null for the shape's own number."),
        BenchmarkArg("length", "Tokens of a sequence; null for the shape's own number."),
        BenchmarkArg("device", "Device, such as cuda."),
        BenchmarkArg("dtype", "Dtype of weights and activations, such as bfloat16."),
    )
    tolerance = TOLERANCE
    counts_bytes = True

    def __init__(
        self,
        model: str | None = None,
        batch: int | None = None,
        length: int | None = None,
        device: str = "cpu",
        dtype: str | torch.dtype = "float32",
    ) -> None:
        super().__init__()
        self.model = model or str(self.sizes["tiny"]["model"])
        self.shape = find_shape(self.model, batch, length)
        self.device = str(device)
        self.dtype = str(dtype).removeprefix("torch.")

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return hidden states of shape (batch, tokens, hidden), which most parts take."""
        return (self.activations(self.shape.batch, self.shape.length, self.shape.hidden),), {}

    def build(self, make: Callable[..., Any], *args: Any, seed: int = 0) -> Any:
        """Call a function with its tensors made on the device, in the dtype, from a fixed seed.

        For weights, which are the same in every batch.
        """
        return impl.making.made(make, *args, device=self.device, dtype=self.dtype, seed=seed)

    def module(self, kind: Callable[..., Any], *args: Any) -> Any:
        """Return a module with random weights."""
        return self.build(impl.making.filled, kind, *args)

    def drawn(self, make: Callable[..., Any], *args: Any, seed: int = 0) -> Any:
        """Call a function as `build` does, from a seed that changes with torch's: for batches."""
        return self.build(make, *args, seed=impl.making.batch_seed(seed))

    def activations(self, *sizes: int, seed: int = 0) -> torch.Tensor:
        """Return normally distributed activations, which get a gradient where there is one."""
        import torch

        found: torch.Tensor = self.drawn(torch.randn, *sizes, seed=seed)
        return found.requires_grad_(self.requires_grad)

    def indices(self, below: int, *sizes: int) -> torch.Tensor:
        """Return random whole numbers from 0 on, such as tokens or labels."""
        import torch

        return self.drawn(torch.randint, 0, below, sizes)

    def turns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the positions, for rotary embedding."""
        shape = self.shape
        angles = impl.layers.angles, shape.length, shape.head, shape.rotary_base
        return self.build(*angles)
