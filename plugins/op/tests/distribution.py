"""A third party's installed distribution with benchmarks and executors, some invalid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SOURCE = '''
from accel_bench_op import Benchmark, BenchmarkArg, Executor, as_dtype


class Scale(Benchmark):
    name = "acme_scale"
    description = "Acme's product of a vector and a weight."
    args = (
        BenchmarkArg("width", "Elements."),
        BenchmarkArg("device", "The device."),
        BenchmarkArg("dtype", "The dtype."),
    )
    sizes = {"tiny": {"width": 64}, "wide": {"width": 4096}, "huge": {"width": 2**50}}

    def __init__(self, width=64, device="cpu", dtype="float32"):
        super().__init__()
        self.width, self.device, self.dtype = width, device, as_dtype(dtype)

    def make_batch(self):
        import torch

        return [torch.randn(self.width, device=self.device, dtype=self.dtype).requires_grad_()], {}

    def fn(self):
        import torch

        class Product(torch.nn.Module):
            def __init__(self, width):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))

            def forward(self, x):
                return x * self.weight

        return Product(self.width).to(self.device, self.dtype)

    def flops(self):
        return self.width

    def bytes_moved(self):
        return 3 * self.width * self.dtype.itemsize

    def backward_bytes_moved(self):
        return 5 * self.width * self.dtype.itemsize

    def reference(self, fn):
        import torch

        def too_large(x):
            raise torch.OutOfMemoryError("CUDA out of memory")

        return too_large if self.width == 4096 else super().reference(fn)


class Sound(Executor):
    """Another order of the same product."""

    def __call__(self, fn):
        return lambda x: fn.weight * x


class Wrong(Executor):
    """A kernel that drops the last element: fast, and wrong."""

    def __call__(self, fn):
        def call(x):
            kept = x.detach() * 0 + 1
            kept[-1] = 0
            return fn(x) * kept

        return call


class WrongGradient(Executor):
    """A kernel with the right output, whose weight gets no gradient."""

    def __call__(self, fn):
        return lambda x: x * fn.weight.detach() + 0 * fn.weight


class Remembering(Executor):
    """Computes once, and returns that for ever."""

    def __call__(self, fn):
        known = []

        def call(x):
            if not known:
                known.append(fn(x).detach())
            return known[0] + 0 * x * fn.weight

        return call


class Absent(Executor):
    """Needs a package that is not there."""

    def supports(self, benchmark):
        return "executor acme-absent needs acme-kernels: pip install acme-kernels"


class HalfOnGPU(Executor):
    """Has a kernel for one dtype on one device."""

    def supports(self, benchmark):
        there = benchmark.device, str(benchmark.dtype)
        return "" if there == ("cuda", "torch.bfloat16") else f"executor acme-half: {there}"
'''

EXECUTORS = {
    "acme-sound": "Sound",
    "acme-wrong": "Wrong",
    "acme-wrong-gradient": "WrongGradient",
    "acme-remembering": "Remembering",
    "acme-absent": "Absent",
    "acme-half": "HalfOnGPU",
}
"""Executors of the distribution, by name."""


def install(
    folder: Path,
    groups: Mapping[str, Mapping[str, str]],
    source: str,
    name: str = "stranger-micro",
    version: str = "1.0",
) -> None:
    """Lay out a distribution with one module of its name, and entry points of several groups."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(source, encoding="utf8")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(head, encoding="utf8")
    lines: list[str] = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf8")


def install_operations(folder: Path) -> None:
    """Lay out the distribution `acme-operations` 2.0 in a folder."""
    executors = {name: f"acme_operations:{kind}" for name, kind in EXECUTORS.items()}
    groups = {"accel_bench.executors": executors, "accel_bench.micro": {"acme": "acme_operations"}}
    install(folder, groups, SOURCE, "acme-operations", "2.0")
