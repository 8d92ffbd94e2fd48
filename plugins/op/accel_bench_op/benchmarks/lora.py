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
        """Return a sentence with the install command if the library is missing; empty otherwise."""
        library, extra = self.needs
        if not library or find_spec(library):
            return ""
        return f"benchmark {self.name} needs {library}: {install_command(extra)}"

    def fn(self) -> Callable[..., Any]:
        """Return a module whose `proj` is PEFT's layer."""
        sizes = self.shape.hidden, self.shape.intermediate
        return self.build(impl.lora.adapted, self.base, *sizes, self.rank)

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the float64 reference: the base's dequantized matrix with the same adapter."""
        return impl.lora.in_float64(fn, self.base)

    def flops(self) -> int | None:
        """Return the FLOPs of the products with the base and the adapter's two matrices."""
        return self._base_flops + self._adapter_flops

    def backward_flops(self) -> int | None:
        """Return the FLOPs of the gradients of input and adapter; the base is frozen."""
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

    Inputs are quantized too, each with an error of up to 1/254 of its row's largest, about 1/80 of
    a typical input; in a sum over a row these errors average out except for a factor of two.
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
