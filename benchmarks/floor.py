"""Estimate the fastest possible step on a device: its FLOPs and bytes over measured rates.

python -m benchmarks.floor cuda > floor.json
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.documents.base import Frozen
from accel_bench.machine.devices import of_torch_type
from accel_bench.worker.clocks import HostClock, clock_for
from benchmarks.gpu_product import LARGE, SMALL, multiply

COPIES = 20
"""Timed copies."""

COPIED_BYTES = {"cuda": 4 * 2**30, "cpu": 2**24}
"""Bytes of a copy: far more than any cache on a GPU."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Bytes of an element."""

OPTIMIZER_PASSES = 7
"""AdamW reads weight, gradient and two moments, and writes weight and moments."""


class Rates(Frozen):
    """Measured peak rates of a device."""

    device: str
    """Name of the device."""

    matmul_flops_per_second: float
    """Rate of a large bfloat16 product: median over batches."""

    copy_bytes_per_second: float
    """Bytes read and written per second by a large copy on the device: median over copies."""

    matmul_samples: tuple[float, ...]
    """FLOP/s of each batch of products."""

    copy_samples: tuple[float, ...]
    """Bytes per second of each copy."""


def main() -> None:
    """Measure both rates and print them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--small", action="store_true", help="only show that it works")
    asked = parser.parse_args()
    print(measure_rates(asked.device, asked.small).model_dump_json(indent=1))


def measure_rates(device: str, small: bool) -> Rates:
    """Measure the rates of products and copies on a torch device."""
    timing = multiply(device, SMALL if small else LARGE)
    seconds = timing.device_seconds or timing.host_seconds
    products = [timing.flops_per_batch / second for second in seconds]
    copies = copy_rates(device, COPIED_BYTES["cpu" if small else device])
    return Rates(
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        matmul_flops_per_second=median(products),
        copy_bytes_per_second=median(copies),
        matmul_samples=tuple(products),
        copy_samples=tuple(copies),
    )


def copy_rates(device: str, size: int) -> list[float]:
    """Return bytes per second, read and written, of copies of `size` bytes within the device."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    clock: HostClock = clock_for(of_torch_type(device))
    target.copy_(source)
    clock.reserve(COPIES + 1)
    clock.synchronize()
    clock.mark()
    for _ in range(COPIES):
        target.copy_(source)
        clock.mark()
    clock.synchronize()
    host, events = clock.read()
    return [2.0 * size / second for second in (events or host)]


def floor_seconds(row: ExperimentSummary, rates: Rates) -> tuple[float, float] | None:
    """Return the seconds of a step's products, and of its optimizer's bytes, at these rates.

    Products are the model's own (`causal`), none of them computed twice; bytes are those of AdamW
    over what trains. None where the model's FLOPs are not known.
    """
    if row.utilization is None or row.tokens is None:
        return None
    flops = row.utilization.flops_per_token.causal * row.tokens.per_step_per_device.processed
    trained = row.effective.trained_dtypes
    if flops is None or not trained:
        return None
    moved = sum(OPTIMIZER_PASSES * ITEM_BYTES[dtype] * count for dtype, count in trained.items())
    return flops / rates.matmul_flops_per_second, moved / rates.copy_bytes_per_second


def floor_line(row: ExperimentSummary, rates: Rates) -> str:
    """Format the floor of a stack's step beside its step, as an item of a Markdown list."""
    floor, steps = floor_seconds(row, rates), row.step_seconds
    if floor is None or steps is None:
        return f"- `{row.stack}`: no floor is known ({row.status.value})"
    products, moved = (1e3 * seconds for seconds in floor)
    share = (products + moved) / (1e3 * steps.p50)
    return (
        f"- `{row.stack}`: floor {products + moved:.1f} ms (products {products:.1f} ms at "
        f"{rates.matmul_flops_per_second / 1e12:.0f} TFLOP/s, optimizer {moved:.1f} ms at "
        f"{rates.copy_bytes_per_second / 1e12:.2f} TB/s), step {1e3 * steps.p50:.1f} ms: "
        f"{share:.0%} of it is the floor"
    )


if __name__ == "__main__":
    main()
