"""`memory`: peaks of window and run, fragmentation, and what a forward pass keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from accel_bench import Batch, Device, Metric, Run, Stage, TokenCounts, Window
from accel_bench.builtin.memory import Memory, MemoryOptions
from accel_bench.modeling.saved_tensors import saved_bytes

MakeRun = Callable[..., Run]
WINDOW = Window(started=0.0, ended=1.0)
ONLY_PEAKS = MemoryOptions(saved_for_backward=False)

SAMPLES, WIDTH, INNER = 4, 8, 16
INPUT = SAMPLES * WIDTH * 4
"""Bytes of what a block reads, in float32."""

HIDDEN = SAMPLES * INNER * 4
"""Bytes of what its second product reads, which is what its ReLU keeps too."""


class Block(nn.Module):
    """Two products around a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    """Two blocks; called as transformers' models are."""

    def __init__(self, recompute: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.dropout = nn.Dropout(dropout)
        self.recompute = recompute

    def forward(self, x: torch.Tensor, num_items_in_batch: int = 1) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        loss = self.dropout(x).sum() / num_items_in_batch
        return type("Output", (), {"loss": loss})


def keeps(model: nn.Module, x: torch.Tensor | None = None) -> int:
    given = torch.randn(SAMPLES, WIDTH) if x is None else x
    return saved_bytes(model, lambda: model(given).loss, "cpu")


def batches() -> Iterator[Batch]:
    while True:
        counts = TokenCounts(SAMPLES, SAMPLES, SAMPLES)
        yield Batch({"x": torch.randn(SAMPLES, WIDTH)}, SAMPLES, counts, SAMPLES)


def built(make_run: MakeRun, model: Any, **scenario: Any) -> Run:
    run = make_run(**scenario)
    run.model = run.unwrapped_model = model
    run.batches = batches()
    return run


def metrics(run: Run, options: MemoryOptions = ONLY_PEAKS) -> dict[tuple[str, str], Metric]:
    found = list(Memory(options).finish_metrics(run, WINDOW))
    assert {(metric.unit, metric.scope) for metric in found} <= {("bytes", "rank")}
    return {(metric.name, metric.kind): metric for metric in found}


def values(run: Run) -> dict[tuple[str, str], float | int | None]:
    return {key: metric.value for key, metric in metrics(run).items()}


def stage(name: str, **readings: int | None) -> Stage:
    return Stage(name=name, seconds=1.0, **readings)  # type: ignore[arg-type]


def test_on_a_cpu_the_peak_is_that_of_the_window_above_the_imports(make_run: MakeRun) -> None:
    run = make_run()
    run.trace.stages += [
        stage("imports", host_bytes=100, host_peak_bytes=110),
        stage("load_model", host_bytes=200, host_peak_bytes=900),
        stage("unstable window", host_bytes=200, host_peak_bytes=350),
        stage("window", host_bytes=200, host_peak_bytes=300),
    ]
    assert values(run) == {
        ("peak_memory_bytes", "rss_above_imports"): 200,
        ("peak_rss_bytes", "rss"): 300,
        ("run_peak_rss_bytes", "rss"): 900,
    }


def test_a_peak_that_cannot_be_told_apart_is_null_with_the_reason(make_run: MakeRun) -> None:
    run = make_run()
    run.trace.stages += [stage("imports", host_bytes=1, host_peak_bytes=1), stage("window")]
    found = metrics(run)
    for key in (("peak_memory_bytes", "rss_above_imports"), ("peak_rss_bytes", "rss")):
        assert found[key].value is None
        assert "does not tell the peak of the window" in found[key].reason


def test_on_a_gpu_peaks_of_window_and_run_and_fragmentation_are_told(make_run: MakeRun) -> None:
    run = make_run()
    run.device = Device("cuda")
    run.trace.stages += [
        stage("imports", host_peak_bytes=5),
        stage("load_model", device_peak_allocated_bytes=50, device_peak_reserved_bytes=64,
              host_peak_bytes=6),
        stage("window", device_peak_allocated_bytes=40, device_peak_reserved_bytes=60,
              device_peak_inactive_split_bytes=3, host_peak_bytes=4),
    ]  # fmt: skip
    assert values(run) == {
        ("peak_memory_bytes", "allocated"): 40,
        ("peak_reserved_bytes", "reserved"): 60,
        ("run_peak_memory_bytes", "allocated"): 50,
        ("run_peak_reserved_bytes", "reserved"): 64,
        ("fragmentation_bytes", "peak_reserved_minus_peak_allocated"): 20,
        ("fragmentation_bytes", "peak_inactive_split"): 3,
        ("peak_rss_bytes", "rss"): 4,
        ("run_peak_rss_bytes", "rss"): 6,
    }


def test_what_a_forward_keeps_is_what_the_hand_computes() -> None:
    assert keeps(Blocks()) == 2 * INPUT + 2 * HIDDEN


def test_recomputation_keeps_the_inputs_of_blocks_alone() -> None:
    assert keeps(Blocks(recompute=True)) == 2 * INPUT


def test_frozen_weights_keep_nothing_for_their_own_gradient() -> None:
    model = Blocks()
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad = False
    assert keeps(model) == INPUT + HIDDEN


def test_parameters_and_buffers_are_not_counted() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))
            self.register_buffer("factor", torch.full((5,), 2.0))

        def forward(self, x: torch.Tensor) -> Any:
            return type("Output", (), {"loss": (self.weight * self.factor).sum()})

    assert keeps(Scale()) == 0


def test_a_view_keeps_the_whole_of_its_storage() -> None:
    whole = torch.randn(10, SAMPLES, WIDTH)
    assert keeps(Blocks(), whole[3]) == keeps(Blocks()) + 9 * INPUT


def test_looking_at_a_compiled_model_compiles_nothing_again() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = Blocks()
    model.compile(backend="aot_eager")
    x = torch.randn(SAMPLES, WIDTH)
    model(x).loss.backward()
    before = counters["stats"]["unique_graphs"]
    assert keeps(model, x) == 2 * INPUT + 2 * HIDDEN
    model(x).loss.backward()
    assert counters["stats"]["unique_graphs"] == before > 0


def test_the_pass_leaves_gradients_weights_and_random_state_alone(make_run: MakeRun) -> None:
    model = Blocks(dropout=0.5)
    run = built(make_run, model)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    run.batches = iter([next(batches())])
    state = torch.get_rng_state()
    found = metrics(run, MemoryOptions())
    metric = found["saved_for_backward_bytes", "one_forward_of_a_micro_batch"]
    dropped = SAMPLES * WIDTH * 4
    assert metric.value == 2 * INPUT + 2 * HIDDEN + dropped
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    for parameter, before in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter, before)


def test_autocast_is_that_of_the_scenario(make_run: MakeRun) -> None:
    run = built(make_run, Blocks(), train={"precision": "bf16-autocast"})
    found = metrics(run, MemoryOptions())
    # Of two bytes each, and copies of the weights that the gradient passes through: all but the
    # first, since the input needs no gradient.
    copies = 3 * WIDTH * INNER * 2
    metric = found["saved_for_backward_bytes", "one_forward_of_a_micro_batch"]
    assert metric.value == (2 * INPUT + 2 * HIDDEN) // 2 + copies


def test_a_model_that_does_not_take_the_pass_gives_null_and_says_so(make_run: MakeRun) -> None:
    run = built(make_run, Blocks())
    run.batches = iter([Batch({"y": torch.ones(1)}, 1, TokenCounts(1, 1, 1), 1)])
    (metric,) = metrics(run, MemoryOptions()).values()
    assert metric.value is None
    assert "TypeError" in metric.reason
    assert not metric.degrades


def test_what_is_no_torch_module_is_not_looked_at(make_run: MakeRun) -> None:
    assert metrics(built(make_run, object()), MemoryOptions()) == {}
