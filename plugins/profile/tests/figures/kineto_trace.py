"""A trace of a GPU in the form in which torch's profiler writes one, made by hand, and its reader.

No GPU has recorded it: categories, fields and names of kernels are those of torch's Chrome traces
(Kineto with CUPTI), and its times are chosen so that every figure follows by arithmetic.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel_bench_profile.figures.spans import KINDS, Cycle, Span, in_order

HOST, STREAM, OTHER_STREAM = 4711, 7, 20

STEP = 10_000
"""Duration of a step in microseconds."""

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>"
PLAIN = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy DtoH (Device -> Pageable)"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"

KERNELS = (
    # name, launch on the host, start and end on the device, stream
    (GEMM, 100, 500, 3_500, STREAM),
    (FLASH, 200, 3_500, 4_500, STREAM),
    (PLAIN, 6_000, 6_010, 7_000, STREAM),
    (REDUCE, 6_100, 6_500, 8_000, OTHER_STREAM),
    (COPY, 6_210, 8_000, 8_005, STREAM),
    (ADAM, 8_500, 8_600, 9_600, STREAM),
)
"""What the device does in a step, in microseconds from its start. Between 200 and 6,000 the host
launches nothing, and from 6,250 to 8,450 it waits for the device."""


def write_trace(path: Path, steps: int = 2) -> Path:
    """Write the trace of so many steps."""
    events = [one for number in range(steps) for one in _step(number)]
    whole = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "made by hand", "warpSize": 32}],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "ts": 0.0, "args": {}},
            *events,
            {
                "ph": "X",
                "cat": "Trace",
                "name": "PyTorch Profiler (0)",
                "pid": "Spans",
                "tid": "PyTorch Profiler",
                "ts": 0.0,
                "dur": float(steps * STEP),
                "args": {"Op count": 0},
            },
        ],
        "traceName": str(path),
    }
    path.write_text(json.dumps(whole), encoding="utf8")
    return path


def _step(number: int) -> list[dict[str, Any]]:
    base = 1_000_000 + number * STEP

    def host(category: str, name: str, start: int, end: int, **arguments: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": HOST,
            "tid": HOST,
            "ts": float(base + start),
            "dur": float(end - start),
            "args": {"External id": 1, **arguments},
        }

    events = [
        host("user_annotation", f"ProfilerStep#{number + 1}", 0, STEP),
        host("user_annotation", "module: layers.0", 250, 8_460),
        host("cpu_op", "aten::_local_scalar_dense", 6_200, 8_455, **{"Sequence number": 3}),
        host("cuda_runtime", "cudaStreamSynchronize", 6_250, 8_450, cbid=131, correlation=99),
        host("user_annotation", "phase: forward", 8_465, 8_466),
        host("user_annotation", "Optimizer.step#AdamW.step", 8_470, 8_550),
        host("user_annotation", "phase: optimizer", 9_990, 9_991),
        host("user_annotation", "preempted: 300000", 6_110, 6_111),
        host("user_annotation", "preempted: 50000", 9_992, 9_993),
    ]
    for place, (name, launch, start, end, stream) in enumerate(KERNELS):
        correlation = 100 * (number + 1) + place
        is_copy = name == COPY
        call = "cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
        events.append(
            host("cuda_runtime", call, launch, launch + 8, cbid=211, correlation=correlation)
        )
        events.append(
            {
                "ph": "X",
                "cat": "gpu_memcpy" if is_copy else "kernel",
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": float(base + start),
                "dur": float(end - start),
                "args": {"device": 0, "stream": stream, "correlation": correlation},
            }
        )
        flow = {"cat": "ac2g", "name": "ac2g", "id": correlation, "pid": 0, "tid": stream}
        events.append({"ph": "f", "bp": "e", "ts": float(base + start), **flow})
    return events


def read_trace(path: Path) -> Cycle:
    """Return the spans of a trace, compressed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf8") as file:
        return Cycle(in_order(_spans(json.load(file)["traceEvents"])))


def _spans(events: list[Mapping[str, Any]]) -> Iterator[Span]:
    for event in events:
        kind = KINDS.get(event.get("cat", ""))
        if kind is None or event.get("ph") != "X":
            continue
        arguments = event.get("args", {})
        start = round(event["ts"] * 1000)
        yield Span(
            name=event["name"],
            kind=kind,
            start=start,
            end=start + round(event.get("dur", 0) * 1000),
            lane=event["tid"] if isinstance(event["tid"], int) else 0,
            correlation=int(arguments.get("correlation", 0)),
            sequence=int(arguments.get("Sequence number", -1)),
        )
