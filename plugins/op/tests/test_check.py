"""A callable with wrong results is invalid, however fast it is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from accel_bench_op import Benchmark, ComputeType, Executor, benchmark_for_compute_type
from accel_bench_op.cell_impl import Cell, build_cell
from accel_bench_op.check_impl import Check
from accel_bench_op.compute import TimedCall
from accel_bench_op.fixture import _pedantic

from accel_bench.errors import PluginError

BACKWARD, FORWARD = ComputeType.TRAINING_BACKWARD, ComputeType.TRAINING_FORWARD


class Normalised(Benchmark):
    """A linear layer and a norm."""

    name = "normalised"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def make_batch(self) -> Any:
        return (torch.randn(16, 8, dtype=self.dtype, requires_grad=True),), {}

    def fn(self) -> torch.nn.Module:
        layers = torch.nn.Linear(8, 8), torch.nn.RMSNorm(8)
        return torch.nn.Sequential(*layers).to(self.dtype)


class Fake(Executor):
    """Computation given by a test, in place of two layers."""

    name = "fake"

    def __init__(self, computed: Callable[[Any, Any, Any], Any]) -> None:
        self.computed = computed

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        linear, norm = benchmark.fn()
        return lambda x: self.computed(linear, norm, x)


class WrongGradient(torch.autograd.Function):
    """The identity, with a gradient that is a hundredth too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.01


def one_row_off(linear: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
    out = norm(linear(x))
    return torch.cat([out[:-1], out[-1:] * 1.1])


def checked(
    computed: Callable[..., Any], compute_type: ComputeType = BACKWARD, **arguments: Any
) -> Check:
    return build_cell(Normalised(**arguments), Fake(computed), compute_type).check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_error_in_any_dtype(dtype: torch.dtype) -> None:
    found = checked(lambda linear, norm, x: norm(linear(x)), dtype=dtype)
    assert found.reason == ""
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert set(found.distances) == {
        "output",
        "gradient of input 0",
        "gradient of 0.weight",
        "gradient of 0.bias",
        "gradient of 1.weight",
    }


@pytest.mark.parametrize(
    ("computed", "reason"),
    [
        (lambda linear, norm, x: norm(linear(x)) * 1.001, "output is off by 0.001 of its size"),
        (one_row_off, "output is off by"),
        (
            lambda linear, norm, x: norm(linear(WrongGradient.apply(x))),
            "gradient of input 0 is off by 0.01 of its size from eager in float64; float32 may be",
        ),
        (
            lambda linear, norm, x: norm(linear(x.detach())),
            "there is no gradient of input 0, which eager computes",
        ),
        (
            lambda linear, norm, x: norm(
                torch.nn.functional.linear(x, linear.weight, linear.bias.data)
            ),
            "there is no gradient of 0.bias, which eager computes",
        ),
        (lambda linear, norm, x: norm(linear(x)) * float("nan"), "output is off by inf"),
        (lambda linear, norm, x: norm(linear(x))[:-1], "output has the shape (15, 8)"),
        (lambda linear, norm, x: None, "there is no output, which eager computes"),
        (lambda linear, norm, x: norm(linear(x)).detach(), "0 outputs require a gradient, 1 of"),
    ],
)
def test_what_is_wrong_is_named_with_its_distance(
    computed: Callable[..., Any], reason: str
) -> None:
    found = checked(computed)
    assert found.reason.startswith("invalid: ")
    assert reason in found.reason


def test_gradients_are_compared_in_both_halves_of_training_and_not_in_inference() -> None:
    def wrong(linear: Any, norm: Any, x: Any) -> Any:
        return norm(linear(WrongGradient.apply(x)))

    assert checked(wrong, ComputeType.INFERENCE).reason == ""
    for compute_type in (FORWARD, BACKWARD):
        assert "gradient of input 0 is off by 0.01" in checked(wrong, compute_type).reason


class Kept(Executor):
    """Caches its result by the address of its input, and returns the cached tensor."""

    name = "kept"

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        fn, kept = benchmark.fn(), {}

        def call(x: torch.Tensor) -> torch.Tensor:
            key = x.data_ptr(), x._version, torch.is_grad_enabled()
            if key not in kept:
                kept.clear()
                kept[key] = fn(x)
            return kept[key]

        return call


@pytest.mark.parametrize("compute_type", [ComputeType.INFERENCE, FORWARD])
def test_a_kernel_that_returns_an_output_which_it_has_kept_is_wrong(
    compute_type: ComputeType,
) -> None:
    found = build_cell(Normalised(), Kept(), compute_type).check()
    assert found.reason.startswith("invalid: output is off by inf of its size")


class Weighted(Normalised):
    """A layer as large as its inputs, unlike norms."""

    def fn(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Identity()).to(self.dtype)


@pytest.mark.parametrize(
    ("computed", "scale"),
    [
        (lambda linear, _, x: linear(x / x.std()), "0.125"),
        (lambda linear, _, x: linear(x.clamp(-5, 5)), "4"),
    ],
)
def test_a_kernel_that_is_right_at_one_scale_of_the_inputs_alone_is_wrong(
    computed: Callable[..., Any], scale: str
) -> None:
    executor = Fake(computed)
    found = build_cell(AtUnitScale(), executor, ComputeType.INFERENCE).check()
    assert f"output of inputs x {scale} is off by" in found.reason
    declared = build_cell(AtUnitScaleAlone(), executor, ComputeType.INFERENCE).check()
    assert declared.reason == ""


class AtUnitScale(Weighted):
    """Inputs whose standard deviation is 1."""

    name = "at_unit_scale"

    def make_batch(self) -> Any:
        x = torch.randn(16, 8, dtype=self.dtype).clamp(-4, 4)
        return ((x / x.std()).requires_grad_(),), {}


class AtUnitScaleAlone(AtUnitScale):
    """Inputs that are only meaningful at their own scale."""

    name = "at_unit_scale_alone"
    scales = ()


class Counting(Benchmark):
    """Counts of each number: integers, without tolerance."""

    name = "counting"
    requires_grad = False

    def make_batch(self) -> Any:
        return (torch.randint(0, 8, (64,)),), {}

    def fn(self) -> Any:
        return lambda x: torch.bincount(x, minlength=8)

    def flops(self) -> int:
        return 64


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        (lambda fn: fn, ""),
        (lambda fn: lambda x: fn(x) + (torch.arange(8) == 7), "invalid: output is off by inf"),
        (
            lambda fn: lambda x: fn(x).double(),
            "invalid: output is torch.float64, that of eager tor",
        ),
    ],
)
def test_whole_numbers_are_equal_or_wrong(wrap: Any, reason: str) -> None:
    class Wrapped(Executor):
        def __call__(self, fn: Any) -> Any:
            return wrap(fn)

    cell = build_cell(Counting(), Wrapped(), ComputeType.INFERENCE)
    found = cell.check()
    assert found.reason.startswith(reason) and bool(found.reason) == bool(reason)
    assert found.distance == (0.0 if not reason else float("inf"))
    # Of whole numbers there is no peak of products, and so no share of it.
    assert set(cell.figures(1.0)) == {"flops", "flops_per_second"}


def test_an_output_without_tensors_is_invalid_for_there_is_nothing_to_compare() -> None:
    class Silent(Counting):
        name = "silent"

        def fn(self) -> Any:
            return lambda x: "done"

    found = build_cell(Silent(), Executor(), ComputeType.INFERENCE).check()
    assert found.reason == "invalid: nothing to compare: eager's output holds no tensor"


def test_complex_outputs_are_compared_in_both_parts() -> None:
    class Spectrum(Normalised):
        name = "spectrum"

        def fn(self) -> Any:
            return torch.fft.fft

    class Conjugated(Executor):
        def __call__(self, fn: Any) -> Any:
            return lambda x: fn(x).conj()

    assert build_cell(Spectrum(), Executor(), BACKWARD).check().reason == ""
    assert "output is off by" in build_cell(Spectrum(), Conjugated(), FORWARD).check().reason


def test_a_gradient_that_is_zero_in_exact_arithmetic_may_hold_rounding_errors() -> None:
    class Shifted(Normalised):
        name = "shifted"

        def fn(self) -> torch.nn.Module:
            # A softmax does not change when a number is added to all its inputs.
            layers = torch.nn.Linear(8, 1), torch.nn.Flatten(0), torch.nn.Softmax(0)
            return torch.nn.Sequential(*layers)

    found = build_cell(Shifted(), Executor(), BACKWARD).check()
    assert found.reason == ""


def test_a_benchmark_that_fails_in_float64_is_to_bring_its_own_reference() -> None:
    weight = torch.randn(8, 8)

    class Closed(Normalised):
        name = "closed"

        def fn(self) -> Any:
            return lambda x: x @ weight

    class Mended(Closed):
        name = "mended"

        def reference(self, fn: Any) -> Any:
            return lambda x: x @ weight.double()

    with pytest.raises(PluginError, match=r"'closed' cannot be computed in float64.*reference"):
        build_cell(Closed(), Executor(), BACKWARD).check()
    assert build_cell(Mended(), Executor(), BACKWARD).check().reason == ""


def test_a_callable_that_remembers_its_result_is_wrong_for_another_batch() -> None:
    results = []

    def remembering(linear: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
        results.append(norm(linear(x)))
        return results[0]

    assert "output is off by" in checked(remembering, FORWARD).reason


def test_a_cell_without_memory_for_float64_is_compared_at_the_smallest_size() -> None:
    class Sized(Normalised):
        name = "sized"
        sizes: ClassVar = {"tiny": {"rows": 2}, "large": {"rows": 16}}

        def __init__(self, rows: int = 4) -> None:
            super().__init__()
            self.rows = rows

        def make_batch(self) -> Any:
            return (torch.randn(self.rows, 8, requires_grad=True),), {}

        def reference(self, fn: Any) -> Any:
            def limited(x: torch.Tensor) -> torch.Tensor:
                if len(x) > 4:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                return super(Sized, self).reference(fn)(x)

            return limited

        requires_grad = False

    tiny, large = (
        build_cell(Sized.at_size(size), Executor(), FORWARD).check() for size in Sized.sizes
    )
    assert (tiny.size, large.size) == ("", "tiny")
    assert large.reason == tiny.reason == ""


def test_a_test_fails_before_a_wrong_callable_is_timed(benchmark: Any) -> None:
    bench = Normalised()
    (x,), _ = bench.make_batch()
    wrong = torch.nn.Sequential(bench.fn(), torch.nn.Identity())
    wrong.register_forward_hook(lambda module, inputs, out: out * 1.5)
    with pytest.raises(pytest.fail.Exception, match=r"output is off by 0\.5 of its size"):
        benchmark_for_compute_type(FORWARD, benchmark, wrong, x)
    assert benchmark.stats is None
    # Cells without a time are not in pytest-benchmark's files.
    assert benchmark.extra_info == {}


def test_memory_that_runs_out_skips_the_test_with_the_reason(benchmark: Any) -> None:
    def full(x: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")

    reason = r"out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.$"
    with pytest.raises(pytest.skip.Exception, match=reason):
        benchmark_for_compute_type(FORWARD, benchmark, full, torch.ones(2))
    assert benchmark.extra_info == {}


def cached_by(key: Callable[[Any], Any]) -> Callable[..., Any]:
    results: dict[Any, Any] = {}
    return lambda linear, norm, x: results.setdefault(key(x), norm(linear(x)))


@pytest.mark.parametrize("key", [lambda x: x.shape, lambda x: x.data_ptr()])
def test_results_cached_by_shape_or_address_are_wrong_and_the_timed_batch_comes_back(
    key: Callable[[Any], Any],
) -> None:
    cell = build_cell(Normalised(), Fake(cached_by(key)), FORWARD)
    before = cell.batch[0][0].detach().clone()
    assert "output is off by" in cell.check().reason
    assert torch.equal(cell.batch[0][0], before)


def test_an_output_in_a_coarser_dtype_than_eagers_is_invalid() -> None:
    found = checked(lambda linear, norm, x: norm(linear(x)).bfloat16())
    assert found.reason == "invalid: output is in bfloat16, and eager computes in float32"
    assert (found.dtype, found.tolerance) == ("float32", 1e-4)


def test_inputs_keep_their_strides() -> None:
    class Transposed(Normalised):
        name = "transposed"

        def make_batch(self) -> Any:
            return (torch.randn(8, 16).t().requires_grad_(),), {}

    def as_if_contiguous(linear: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
        return norm(linear(x.as_strided(x.shape, (x.shape[1], 1))))

    assert "off by" in build_cell(Transposed(), Fake(as_if_contiguous), FORWARD).check().reason


def test_a_callable_that_writes_over_its_inputs_is_invalid_unless_eager_does() -> None:
    def in_place(linear: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(norm(linear(x)))

    reason = checked(in_place, ComputeType.INFERENCE).reason
    assert reason.startswith("invalid: input 0 after the call is off by ")

    class Intermediate(Normalised):
        name = "intermediate"
        keeps_inputs = False

    assert build_cell(Intermediate(), Fake(in_place), ComputeType.INFERENCE).check().reason == ""

    class Stepped(Counting):
        name = "stepped"

        def fn(self) -> Any:
            return lambda x: x.add_(1)

    assert build_cell(Stepped(), Executor(), ComputeType.INFERENCE).check().reason == ""


def test_a_small_gradient_is_compared_with_itself() -> None:
    class Summed(Benchmark):
        name = "summed"

        def make_batch(self) -> Any:
            return tuple(torch.randn(4, requires_grad=True) for _ in range(2)), {}

        def fn(self) -> Any:
            return lambda a, b: 1e6 * a + b

    class Off(Executor):
        name = "off"

        def build(self, benchmark: Benchmark) -> Any:
            return lambda a, b: benchmark.fn()(a, b) + 0.1 * (b - b.detach())

    assert (
        "gradient of input 1 is off by 0.1" in build_cell(Summed(), Off(), BACKWARD).check().reason
    )


def test_a_benchmark_that_is_not_deterministic_is_not_compared(benchmark: Any) -> None:
    class Dropped(Normalised):
        name = "dropped"

        def fn(self) -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))

    expected = "not deterministic: no comparison, since two calls of eager differ"
    found = build_cell(Dropped(), Executor(), BACKWARD).check()
    assert (found.reason, found.undecided) == ("", expected)
    bench = Dropped()
    args, _ = bench.make_batch()
    benchmark_for_compute_type(FORWARD, benchmark, bench.fn(), *args)
    assert benchmark.extra_info["outcome"] == expected
    assert "distance" not in benchmark.extra_info


def test_an_inference_cell_is_never_called_with_gradients() -> None:
    modes = set()

    def noted(linear: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
        modes.add(torch.is_grad_enabled())
        return norm(linear(x))

    checked(noted, ComputeType.INFERENCE)
    assert modes == {False}


class Rooted(Benchmark):
    """A function of torch."""

    name = "rooted"

    def make_batch(self) -> Any:
        return (torch.rand(4) + 1,), {}

    def fn(self) -> Any:
        return torch.sqrt


@pytest.mark.parametrize("kind", [Normalised, Rooted])
def test_a_benchmark_is_known_by_its_batch_whatever_is_called(benchmark: Any, kind: Any) -> None:
    bench = kind()
    args, _ = bench.make_batch()
    right = bench.fn()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return 2 * right(x)

    with pytest.raises(pytest.fail.Exception, match="output is off by 1 of its size"):
        benchmark_for_compute_type(FORWARD, benchmark, fn, *args)


def test_what_is_not_known_at_all_says_that_it_was_not_compared(benchmark: Any) -> None:
    benchmark_for_compute_type(FORWARD, benchmark, torch.sqrt, torch.ones(2))
    assert benchmark.extra_info["outcome"] == "not compared"


def test_a_round_keeps_neither_a_result_nor_gradients_of_another(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    alive: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(one() is not None for one in results))
        out = x * 2
        results.append(weakref.ref(out))
        return out

    held: list[Any] = []
    weight = torch.ones(3, requires_grad=True)
    monkeypatch.setattr(Cell, "peak_memory", lambda cell: held.append(weight.grad))
    # Timed, also where `--benchmark-disable` has the others called once.
    monkeypatch.setattr(benchmark, "disabled", False)
    benchmark_for_compute_type(BACKWARD, benchmark, lambda x: x * weight, torch.ones(3))
    assert held == [None]
    call = TimedCall(FORWARD, fn, ((torch.ones(3),), {}), lambda out: out)
    benchmark._mode = None
    _pedantic(benchmark, call, "cpu", False)
    assert len(alive) > 3 and set(alive) == {0}


def test_a_backward_cell_holds_no_graph_while_it_is_compared(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[Any] = []
    compared = Cell.check

    def check(cell: Cell) -> Check:
        gc.collect()
        assert graphs and all(one() is None for one in graphs)
        return compared(cell)

    monkeypatch.setattr(Cell, "check", check)
    bench = Normalised()
    fn, (args, _) = bench.fn(), bench.make_batch()
    fn.register_forward_hook(lambda module, inputs, out: graphs.append(weakref.ref(out)))
    benchmark_for_compute_type(BACKWARD, benchmark, fn, *args)
    assert benchmark.extra_info["outcome"] == "ok"
