"""Executors of micro-benchmarks: `liger`, and `fused-kernels` with that plugin's kernels.

Importing this module is light: the kernels import torch.
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
"""Parts of the plugin by a benchmark's operation."""

ADAPTED = frozenset({"lora_linear", "lora_nf4_linear", "lora_int8_linear", "lora_gptq_linear"})
"""Operations with a kernel in the part `lora`, on any device."""

MODEL = "causal_lm"
"""Operation of a whole model, in which every available part is fused."""


class _Kernels(Executor):
    """Base class of executors whose kernels may need a GPU."""

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return why the kernel cannot run on the benchmark's device; empty if it can."""
        device = str(getattr(benchmark, "device", "")).partition(":")[0]
        why = self.problem(benchmark.operation, device) if device and self.takes(benchmark) else ""
        return super().supports(benchmark) or (f"executor {self.name}: {why}" if why else "")

    def problem(self, operation: str, device: str) -> str:
        """Return why an operation has no kernel on a device type; empty if it has one."""
        raise NotImplementedError


class Liger(_Kernels):
    """Liger's kernels, called as its users call them."""

    name = "liger"
    operations = frozenset({*PARTS, "layer_norm", MODEL})

    def problem(self, operation: str, device: str) -> str:
        """Return that Triton needs a GPU; empty with a GPU or Triton's interpreter."""
        return library_of("rope", "liger", device, os.environ)[1]

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        """Return Liger's kernel with the benchmark's weights."""
        from accel_bench_fused_kernels.impl import executors

        return executors.by_liger(benchmark.operation, benchmark.fn())


class FusedKernels(_Kernels):
    """Executor with the plugin's kernels: Liger's on a GPU, torch's on a CPU, its own for LoRA."""

    name = "fused-kernels"
    operations = frozenset({*PARTS, *ADAPTED, MODEL})

    def problem(self, operation: str, device: str) -> str:
        """Return why no library has a kernel for the operation's part on the device."""
        return (
            library_of(PARTS[operation], "auto", device, os.environ)[1]
            if (operation in PARTS)
            else ""
        )

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        """Return the fused kernel with the benchmark's weights."""
        from accel_bench_fused_kernels.impl import executors

        fn, operation = benchmark.fn(), benchmark.operation
        if operation in ADAPTED:
            return executors.with_fused_lora(fn)
        device = str(getattr(benchmark, "device", "cpu")).partition(":")[0]
        if operation == MODEL:
            return executors.with_fused_model(fn, device)
        library, _ = library_of(PARTS[operation], "auto", device, os.environ)
        return executors.by_library(library, operation, fn)
