"""Base class of the included benchmarks: an operation, block or model at a known model's shape."""

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
"""Maximum error relative to the largest value of a float64 tensor, by dtype.

A product over n elements has an error of about sqrt(n) roundings in the dtype of the sum, float32
except in float64: 1e-5 for the 11,008 of a Llama, with a factor of five on top. In 16 bits each
operation's inputs are rounded too, to 2**-9 and 2**-12 of them, in up to eight successive
operations of a block.
"""


class PartBenchmark(Benchmark):
    """Benchmark of a part of a model, at the shape of a known model.

    The first line of a subclass's docstring is its default description.
    """

    args: tuple[BenchmarkArg, ...] = (
        BenchmarkArg("model", "Model whose shape it is, of `shapes.SHAPES`; null for a tiny one."),
        BenchmarkArg("batch", "Sequences of a batch; null for the shape's own number."),
        BenchmarkArg("length", "Tokens of a sequence; null for the shape's own number."),
        BenchmarkArg("device", "Device, such as cuda."),
        BenchmarkArg("dtype", "Dtype of weights and activations, such as bfloat16."),
    )
    tolerance = TOLERANCE
    counts_bytes = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        if "description" not in vars(cls):
            cls.description = (cls.__doc__ or "").partition("\n")[0]
        super().__init_subclass__(**keywords)

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
        """Return hidden states of shape (batch, tokens, hidden), the input of most parts."""
        return (self.activations(self.shape.batch, self.shape.length, self.shape.hidden),), {}

    def build(self, make: Callable[..., Any], *args: Any, seed: int = 0) -> Any:
        """Return `make(*args)`, called with the benchmark's device and dtype and a fixed seed.

        It is for weights, which must be the same in every call.
        """
        return impl.seeded.made(make, *args, device=self.device, dtype=self.dtype, seed=seed)

    def module(self, kind: Callable[..., Any], *args: Any) -> Any:
        """Return the module `kind(*args)` with random weights from a fixed seed."""
        return self.build(impl.seeded.filled, kind, *args)

    def drawn(self, make: Callable[..., Any], *args: Any, seed: int = 0) -> Any:
        """Return `make(*args)` as `build` does, but for batches.

        The seed also depends on `torch.manual_seed`, so that batches can differ.
        """
        return self.build(make, *args, seed=impl.seeded.batch_seed(seed))

    def activations(self, *sizes: int, seed: int = 0) -> torch.Tensor:
        """Return normally distributed activations, with gradients if there is a backward pass."""
        import torch

        tensor: torch.Tensor = self.drawn(torch.randn, *sizes, seed=seed)
        return tensor.requires_grad_(self.requires_grad)

    def indices(self, below: int, *sizes: int) -> torch.Tensor:
        """Return random integers from 0 to `below` - 1, such as token ids or labels."""
        import torch

        return self.drawn(torch.randint, 0, below, sizes)

    def turns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines (1, tokens, head) that rotary embedding needs."""
        shape = self.shape
        angles = impl.layers.angles, shape.length, shape.head, shape.rotary_base
        return self.build(*angles)
