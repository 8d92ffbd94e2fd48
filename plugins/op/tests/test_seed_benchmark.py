"""Lightning Thunder's documented benchmark, unchanged except for imports.

It names its class properties as `@classmethod @property`, keeps the arguments in `_args`, calls
`super().__init__(self)`, and draws the targets of its loss anew in every backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from accel_bench_op import (
    Benchmark,
    BenchmarkArg,
    ComputeType,
    Executor,
    benchmark_for_compute_type,
    find_executors,
    parametrize_compute_type,
)
from torch.testing import make_tensor

pytestmark = pytest.mark.filterwarnings("default")


class CapturedExecutor(Executor):
    """`torch.compile` without the seconds that inductor takes."""

    def __call__(self, fn: Callable) -> Callable:
        return torch.compile(fn, backend="aot_eager")


torch_executor = find_executors()["eager"]
torch_compile_executor = CapturedExecutor()


class FooBase(Benchmark):
    """Common base of the function and the module benchmark, without a name."""

    _args = (
        BenchmarkArg(name="device", description="A string representing the device."),
        BenchmarkArg(name="dtype", description="The dtype of the tensors."),
    )

    @classmethod
    @property
    def args(cls) -> tuple[BenchmarkArg, ...]:
        return cls._args

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(self)
        self.device: str = device
        self.dtype: torch.dtype = dtype

    def make_batch(self) -> tuple[list, dict]:
        make = partial(make_tensor, device=self.device, dtype=self.dtype)
        return (make(10, 10),), {}

    def postprocess_for_backward(self, out: torch.Tensor) -> torch.Tensor | None:
        # Whether a backward pass is needed at all.
        if not self.requires_grad:
            return None
        targets = torch.rand_like(out)
        return torch.nn.functional.mse_loss(out, targets)


class FooBenchmark(FooBase):
    """Benchmark of a function."""

    @classmethod
    @property
    def name(cls) -> str:
        return "foo_bench"

    @classmethod
    @property
    def description(cls) -> str:
        return "Benchmark for foo function"

    def fn(self) -> Callable:
        def foo(a):
            return a + a

        return foo


class FooModuleBenchmark(FooBase):
    """Benchmark of a module, with plain attributes `name` and `description`."""

    name = "foo-module"
    description = "Benchmark for foo module"

    def fn(self) -> Callable:
        class FooNetwork(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(10, 10)

            def forward(self, x):
                return self.layer(x)

        return FooNetwork().to(device=self.device, dtype=self.dtype).requires_grad_()


def test_name_description_and_arguments_are_read_from_the_class_and_from_the_instance() -> None:
    for one in (FooBenchmark, FooBenchmark()):
        assert (one.name, one.description) == ("foo_bench", "Benchmark for foo function")
        assert [arg.name for arg in one.args] == ["device", "dtype"]


def test_foo(benchmark: Any) -> None:
    bench: Benchmark = FooBenchmark(device="cpu", dtype=torch.bfloat16)

    args, kwargs = bench.make_batch()
    result = benchmark(bench.fn(), *args, **kwargs)
    assert torch.equal(result, args[0] * 2)


@pytest.mark.parametrize(
    "executor", (torch_executor, torch_compile_executor), ids=("torch", "torch.compile")
)
@parametrize_compute_type
def test_foo_module(benchmark: Any, executor: Any, compute_type: ComputeType) -> None:
    bench: Benchmark = FooModuleBenchmark(device="cpu", dtype=torch.float32)

    args, kwargs = bench.make_batch()
    fn = executor(bench.fn())

    benchmark_for_compute_type(compute_type, benchmark, fn, *args, **kwargs)
    assert benchmark.extra_info["distance"] <= benchmark.extra_info["tolerance"] == 1e-4
    # Gradients are cleared, and none was computed but in the backward pass.
    assert all(one.grad is None for one in bench.returned_fn.parameters())


@parametrize_compute_type
def test_foo_function(benchmark: Any, compute_type: ComputeType) -> None:
    bench: Benchmark = FooBenchmark(device="cpu", dtype=torch.float32)

    args, kwargs = bench.make_batch()
    if compute_type is ComputeType.TRAINING_BACKWARD:
        # Nothing in a + a requires a gradient, neither for one who asks for none.
        with pytest.raises(pytest.skip.Exception, match="no output requires a gradient"):
            benchmark_for_compute_type(compute_type, benchmark, bench.fn(), *args, **kwargs)
    else:
        benchmark_for_compute_type(compute_type, benchmark, bench.fn(), *args, **kwargs)
        assert benchmark.extra_info["distance"] == 0


def test_a_benchmark_that_requires_no_gradient_has_no_backward_pass(benchmark: Any) -> None:
    bench = FooModuleBenchmark()
    bench.requires_grad = False
    args, kwargs = bench.make_batch()
    backward = ComputeType.TRAINING_BACKWARD
    with pytest.raises(pytest.skip.Exception, match="no output requires a gradient"):
        benchmark_for_compute_type(backward, benchmark, bench.fn(), *args, **kwargs)


def test_the_function_has_a_backward_pass_where_its_input_requires_a_gradient(
    benchmark: Any,
) -> None:
    bench = FooBenchmark()
    args, kwargs = bench.make_batch()
    args[0].requires_grad_()
    backward = ComputeType.TRAINING_BACKWARD
    benchmark_for_compute_type(backward, benchmark, bench.fn(), *args, **kwargs)
    assert benchmark.extra_info["distance"] == 0
    assert args[0].grad is None
