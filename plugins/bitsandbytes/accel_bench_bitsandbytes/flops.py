"""FLOP formulas of bitsandbytes' custom operations, for torch's FLOP counter."""

from __future__ import annotations

from typing import Any

PRODUCTS = (
    *("gemm_4bit", "gemv_4bit"),
    *("int8_linear_matmul", "int8_scaled_mm", "int8_mixed_scaled_mm"),
)
"""Names of operations that multiply their first operand by a quantized matrix."""


def register_flops() -> None:
    """Register a FLOP formula with torch for each operation in `PRODUCTS` that has none."""
    import bitsandbytes  # noqa: F401 - defines the operations
    import torch
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    operations = torch.ops.bitsandbytes
    known = [getattr(operations, name) for name in PRODUCTS if hasattr(operations, name)]
    new = [packet for packet in known if packet not in flop_registry]
    if new:
        register_flop_formula(new, get_raw=True)(product_flops)


def product_flops(left: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    """Return the FLOPs of a matrix product: 2 x rows x columns x inner length.

    `left` is the first operand, and `out_val` the result. Dequantization counts as 0.
    """
    out = out_val[0] if isinstance(out_val, tuple) else out_val  # with the columns of outliers
    return 2 * int(out.numel()) * int(left.shape[-1])
