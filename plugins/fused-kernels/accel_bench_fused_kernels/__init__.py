"""Plugins `fused-kernels`, with an option for each kernel, and `liger`."""

from __future__ import annotations

from accel_bench_fused_kernels.liger_plugin import Liger, LigerOptions
from accel_bench_fused_kernels.plugin import FusedKernels, FusedKernelsOptions

__all__ = ["FusedKernels", "FusedKernelsOptions", "Liger", "LigerOptions"]
