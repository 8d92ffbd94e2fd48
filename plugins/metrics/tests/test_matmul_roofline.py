"""`matmul-roofline` times the model's own products, in their dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.benchmark
from accel_bench_huggingface.loader import HuggingFace
from accel_bench_metrics import matmul_roofline
from accel_bench_metrics.matmul_roofline import MatmulRoofline
from torch.utils._python_dispatch import TorchDispatchMode

from accel_bench import Metric, Options, Run, Sample, Window
from accel_bench.worker.flops.trace import read_workload

MakeRun = Callable[..., Run]
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}


def window(*tokens: int) -> Window:
    samples = (
        Sample(
            step=step,
            seconds=1.0,
            sequences=1,
            processed_tokens=count,
            real_tokens=count,
            supervised_tokens=count,
            loss=1.0,
        )
        for step, count in enumerate(tokens)
    )
    return Window(started=0.0, ended=1.0, samples=tuple(samples))


def loaded(make_run: MakeRun, **scenario: Any) -> Run:
    run = make_run(**{"model": {"overrides": SMALL}, **scenario})
    run.model = run.unwrapped_model = HuggingFace(Options()).load_model(run)
    run.workload = read_workload(run)
    return run


def measured(run: Run, *tokens: int) -> Metric:
    (metric,) = MatmulRoofline(Options()).finish_metrics(run, window(*tokens))
    return metric


class Products(TorchDispatchMode):
    """Dispatch mode that records shapes and dtypes of products."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.seen[tuple(args[0].shape), tuple(args[1].shape), args[0].dtype] += 1
        return func(*args, **(kwargs or {}))


class OneSecond:
    """A timer whose calls take a second each."""

    median = 1.0

    def __init__(
        self, statement: str, globals: dict[str, Any], num_threads: int, timer: Any
    ) -> None:
        globals["call"]()

    def timeit(self, number: int) -> OneSecond:
        return self


def products(run: Run, *tokens: int) -> set[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    with Products() as noted:
        measured(run, *tokens)
    return set(noted.seen)


def test_the_metric_is_seconds_of_a_rank(make_run: MakeRun) -> None:
    metric = measured(loaded(make_run), 16, 16)
    assert (metric.name, metric.unit, metric.scope) == ("matmul_seconds", "seconds", "rank")
    assert metric.value is not None and metric.value > 0


def test_forward_and_both_backward_products_are_timed_where_all_trains(make_run: MakeRun) -> None:
    found = products(loaded(make_run), 16, 16)
    kind = torch.float32
    assert {
        ((16, 32), (32, 2048), kind),
        ((16, 2048), (2048, 32), kind),
        ((2048, 16), (16, 32), kind),
    } <= found
    assert all(16 in left + right for left, right, _ in found)


def test_products_of_gradients_that_nobody_needs_are_not_timed(make_run: MakeRun) -> None:
    run = loaded(make_run)
    run.model.requires_grad_(False)
    run.workload = read_workload(run)
    assert all(left[0] == 16 and right[0] != 16 for left, right, _ in products(run, 16))
    assert len(products(run, 16)) < len(products(loaded(make_run), 16))


def test_products_have_the_dtype_of_the_model(make_run: MakeRun) -> None:
    run = loaded(make_run, model={"overrides": SMALL, "dtype": "bfloat16"})
    assert {dtype for *_, dtype in products(run, 16)} == {torch.bfloat16}


def test_a_step_of_several_micro_batches_multiplies_as_often_with_fewer_tokens(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.benchmark, "Timer", OneSecond)
    one, four = (loaded(make_run, train={"gradient_accumulation": n}) for n in (1, 4))
    assert ((4, 32), (32, 2048), torch.float32) in products(four, 16)
    workload = one.workload
    assert workload is not None
    matrices = sum(matmul.count for matmul in workload.matmuls)
    assert measured(one, 16).value == matrices
    assert measured(four, 16).value == 4 * matrices


def test_there_is_null_where_the_model_is_not_understood(make_run: MakeRun) -> None:
    run = make_run()
    run.model = run.unwrapped_model = torch.nn.Sequential(torch.nn.Conv1d(2, 2, 2))
    assert measured(run, 16).value is None


def test_there_is_null_where_memory_does_not_suffice(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    run = loaded(make_run)
    monkeypatch.setattr(matmul_roofline, "_seconds", full)
    assert measured(run, 16).value is None


def test_there_is_null_where_no_torch_model_trains(make_run: MakeRun) -> None:
    assert measured(make_run(), 16).value is None
