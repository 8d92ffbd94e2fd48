"""Benchmarks of PEFT's linear layers with LoRA over a frozen base, dense or quantized."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from accel_bench.errors import install_command
from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.part_benchmark import TOLERANCE, PartBenchmark
from accel_bench_op.benchmarks.shapes import LLAMAS


class LoraLinear(PartBenchmark):
    """Linear layer with LoRA over a dense base."""

    name = "lora_linear"
    operation = "lora_linear"
    sizes = LLAMAS

    base = "dense"
    """Kind of the base layer: `dense`, or the quantized `nf4`, `int8` or `gptq`."""

    needs: tuple[str, str] = ("", "")
    """Library of the base layer, and the extra that installs it."""

    rank = 16
    """Rank of the adapter."""

    def unavailable(self) -> str:
        """Return how to install the base layer's library, in a sentence; empty if installed."""
        library, extra = self.needs
        if not library or find_spec(library):
            return ""
        return f"benchmark {self.name} needs {library}: {install_command(extra)}"

    def fn(self) -> Callable[..., Any]:
        """Return a module whose layer `proj` has a frozen base and PEFT's LoRA adapter."""
        sizes = self.shape.hidden, self.shape.intermediate
        return self.build(impl.lora.adapted, self.base, *sizes, self.rank)

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a float64 copy of the module `fn`, with the base's dequantized weights."""
        return impl.lora.in_float64(fn, self.base)

    def flops(self) -> int | None:
        """Return the forward FLOPs of the products with the base's and the adapter's matrices."""
        return self._base_flops + self._adapter_flops

    def backward_flops(self) -> int | None:
        """Return the FLOPs of the gradients of the input and the adapter; the base is frozen."""
        return self._base_flops + 2 * self._adapter_flops

    @property
    def _base_flops(self) -> int:
        return 2 * self.shape.tokens * self.shape.hidden * self.shape.intermediate

    @property
    def _adapter_flops(self) -> int:
        widths = self.shape.hidden + self.shape.intermediate
        return 2 * self.shape.tokens * self.rank * widths


class LoraNF4Linear(LoraLinear):
    """Linear layer with LoRA over a base in nf4 by bitsandbytes."""

    name = "lora_nf4_linear"
    operation = "lora_nf4_linear"
    base = "nf4"
    counts_bytes = False
    needs = ("bitsandbytes", "bnb")


class LoraInt8Linear(LoraLinear):
    """Linear layer with LoRA over a base in int8 by bitsandbytes.

    Inputs are quantized too. The error of each is at most 1/254 of the largest input in its row,
    which is about 1/80 of a typical input. Outputs have at most about twice that relative error.
    """

    name = "lora_int8_linear"
    operation = "lora_int8_linear"
    base = "int8"
    counts_bytes = False
    needs = ("bitsandbytes", "bnb")
    tolerance = dict.fromkeys(TOLERANCE, 3e-2)


class LoraGPTQLinear(LoraLinear):
    """Linear layer with LoRA over a base in GPTQ's 4 bits by GPTQModel."""

    name = "lora_gptq_linear"
    operation = "lora_gptq_linear"
    base = "gptq"
    counts_bytes = False
    needs = ("gptqmodel", "gptq")
    # It multiplies in 16 bits always.
    tolerance = MappingProxyType({**TOLERANCE, "float64": 4e-3, "float32": 4e-3})
