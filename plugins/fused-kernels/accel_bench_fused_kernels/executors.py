"""Executors of micro-benchmarks with fused kernels: `liger`, and `fused-kernels` by the plugin of
that name.

Importing this module is fast: only the kernels' modules import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from accel_bench_op import Benchmark, Executor

from accel_bench_fused_kernels.plugin import library_of

PARTS: Mapping[str, str] = {
    "rms_norm": "rms_norm",
    "rotary": "rope",
    "swiglu_mlp": "gated_mlp",
    "geglu_mlp": "gated_mlp",
    "cross_entropy": "cross_entropy",
    "fused_linear_cross_entropy": "linear_cross_entropy",
}
"""Plugin option that enables a kernel, by the benchmark operation that the kernel computes."""

ADAPTED = frozenset({"lora_linear", "lora_nf4_linear", "lora_int8_linear", "lora_gptq_linear"})
"""Operations that the kernels of the option `lora` compute, on any device."""

MODEL = "causal_lm"
"""Benchmark operation of a whole model, in which all available kernels are installed."""


class _Kernels(Executor):
    """Base class of executors whose kernels may need a GPU."""

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return the reason why the executor cannot run a benchmark, such as a device without a
        kernel, or an empty string."""
        device = str(getattr(benchmark, "device", "")).partition(":")[0]
        why = self.problem(benchmark.operation, device) if device and self.takes(benchmark) else ""
        return super().supports(benchmark) or (f"executor {self.name}: {why}" if why else "")

    def problem(self, operation: str, device: str) -> str:
        """Return the reason why an operation has no kernel on a device type such as `cuda`, or an
        empty string."""
        raise NotImplementedError


class Liger(_Kernels):
    """Executor that calls Liger's kernels as its users call them."""

    name = "liger"
    operations = frozenset({*PARTS, "layer_norm", MODEL})

    def problem(self, operation: str, device: str) -> str:
        """Return the reason why Liger's kernels cannot run on a device type, or an empty text."""
        return library_of("rope", "liger", device, os.environ)[1]

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        """Return Liger's kernel for the benchmark's operation, bound to the benchmark's weights."""
        from accel_bench_fused_kernels.impl import executors

        return executors.by_liger(benchmark.operation, benchmark.fn())


class FusedKernels(_Kernels):
    """Executor with this plugin's kernels: Liger's on a GPU, torch's on a CPU, its own for LoRA."""

    name = "fused-kernels"
    operations = frozenset({*PARTS, *ADAPTED, MODEL})

    def problem(self, operation: str, device: str) -> str:
        """Return the reason why neither Liger nor torch has a kernel for an operation on a device
        type, or an empty string."""
        return (
            library_of(PARTS[operation], "auto", device, os.environ)[1]
            if (operation in PARTS)
            else ""
        )

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        """Return the fused kernel for a benchmark's operation, bound to the benchmark's weights."""
        from accel_bench_fused_kernels.impl import executors

        fn, operation = benchmark.fn(), benchmark.operation
        if operation in ADAPTED:
            return executors.with_fused_lora(fn)
        device = str(getattr(benchmark, "device", "cpu")).partition(":")[0]
        if operation == MODEL:
            return executors.with_fused_model(fn, device)
        library, _ = library_of(PARTS[operation], "auto", device, os.environ)
        return executors.by_library(library, operation, fn)
