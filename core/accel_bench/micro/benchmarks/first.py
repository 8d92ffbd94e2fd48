"""Two simple benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accel_bench.micro.benchmark import Benchmark, BenchmarkArg, as_dtype


class RMSNormBenchmark(Benchmark):
    """A module."""

    name = "rms_norm"
    description = "Llama's RMS norm."
    operation = "rms_norm"
    args = (
        BenchmarkArg("rows", "Number of vectors; 4096 by default."),
        BenchmarkArg("width", "Elements of a vector; 4096 by default."),
        BenchmarkArg("device", "The device; `cpu` by default."),
        BenchmarkArg("dtype", "The dtype; `float32` by default."),
    )
    sizes: Mapping[str, Mapping[str, object]] = {
        "tiny": {"rows": 16, "width": 32},
        "7b": {"rows": 8192, "width": 4096},
    }

    def __init__(
        self, rows: int = 4096, width: int = 4096, device: Any = "cpu", dtype: Any = "float32"
    ) -> None:
        super().__init__()
        self.rows, self.width, self.device = rows, width, device
        self.dtype = as_dtype(dtype)

    def make_batch(self) -> tuple[list[Any], dict[str, Any]]:
        """Return x of shape (rows, width)."""
        import torch

        shape = (self.rows, self.width)
        return [torch.randn(shape, device=self.device, dtype=self.dtype, requires_grad=True)], {}

    def fn(self) -> Callable[..., Any]:
        """Return the module."""
        import torch

        return torch.nn.RMSNorm(self.width, device=self.device, dtype=self.dtype)

    def bytes_moved(self) -> int:
        """Return the bytes of x, read and written."""
        return 2 * self.rows * self.width * int(self.dtype.itemsize)


class LlamaMLPBenchmark(Benchmark):
    """A module."""

    name = "llama_mlp"
    description = "Llama's feed-forward block."
    operation = "swiglu_mlp"
    args = (
        BenchmarkArg("tokens", "Number of tokens; 4096 by default."),
        BenchmarkArg("width", "Size of the hidden state; 4096 by default."),
        BenchmarkArg("inner", "Size between the projections; 11008 by default."),
        BenchmarkArg("device", "The device; `cpu` by default."),
        BenchmarkArg("dtype", "The dtype; `float32` by default."),
    )
    sizes: Mapping[str, Mapping[str, object]] = {
        "tiny": {"tokens": 8, "width": 16, "inner": 32},
        "7b": {"tokens": 4096, "width": 4096, "inner": 11008},
    }

    def __init__(
        self,
        tokens: int = 4096,
        width: int = 4096,
        inner: int = 11008,
        device: Any = "cpu",
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        self.tokens, self.width, self.inner, self.device = tokens, width, inner, device
        self.dtype = as_dtype(dtype)

    def make_batch(self) -> tuple[list[Any], dict[str, Any]]:
        """Return x of shape (tokens, width)."""
        import torch

        shape = (self.tokens, self.width)
        return [torch.randn(shape, device=self.device, dtype=self.dtype, requires_grad=True)], {}

    def fn(self) -> Callable[..., Any]:
        """Return the module, with transformers' names of its weights."""
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaMLP

        config = LlamaConfig(hidden_size=self.width, intermediate_size=self.inner)
        module: Any = LlamaMLP(config)
        return module.to(device=self.device, dtype=self.dtype)

    def flops(self) -> int:
        """Return the FLOPs of the three projections."""
        return 6 * self.tokens * self.width * self.inner
