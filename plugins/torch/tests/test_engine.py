"""The torch engine: its losses and gradients against plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from accel_bench_torch.engine_impl import TorchEngine

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError

MakeRun = Callable[..., Run]


class Laps:
    """Stands where the stopwatch does, and keeps what it is told."""

    def __init__(self, steps: int) -> None:
        self.running = True
        self.losses: list[float] = []
        self._steps = steps

    def mark(self, phase: str) -> None:
        """Not looked at here."""

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        assert not loss.requires_grad
        self.losses.append(float(loss))
        self.running = len(self.losses) < self._steps


class Tiny(torch.nn.Module):
    """A model with transformers' way of being called: returns an object with a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int) -> Any:
        logits = self.layer(x)
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return type("Output", (), {"loss": total / num_items_in_batch})


def data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 4, generator=generator)
    return x, torch.randint(0, 3, (samples,), generator=generator)


def micro_batches(samples: int, size: int, step: int) -> Iterator[Batch]:
    x, labels = data(samples)
    while True:
        for start in range(0, samples, size):
            part = slice(start, start + size)
            counts = TokenCounts(size, size, size)
            yield Batch({"x": x[part], "labels": labels[part]}, size, counts, step)


def engine(
    make_run: MakeRun, size: int, accumulation: int, **train: Any
) -> tuple[TorchEngine, Tiny]:
    train = {"micro_batch_size": size, "gradient_accumulation": accumulation, **train}
    run = make_run(train=train, resources={"device": "cpu"})
    model = Tiny()
    run.model = run.unwrapped_model = model
    run.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run.batches = micro_batches(8, size, size * accumulation)
    return TorchEngine(run), model


def test_a_step_is_the_gradient_of_the_mean_over_supervised_tokens(make_run: MakeRun) -> None:
    loop, model = engine(make_run, size=8, accumulation=1)
    laps = Laps(1)
    loop.run(laps)
    reference = Tiny()
    x, labels = data(8)
    loss = torch.nn.functional.cross_entropy(reference.layer(x), labels)
    loss.backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs - 0.5 * theirs.grad)
    assert laps.losses == [pytest.approx(loss.item(), rel=1e-6)]


def test_accumulation_gives_the_losses_and_weights_of_one_large_batch(make_run: MakeRun) -> None:
    whole, whole_model = engine(make_run, size=8, accumulation=1)
    parts, parts_model = engine(make_run, size=2, accumulation=4)
    whole_laps, parts_laps = Laps(5), Laps(5)
    whole.run(whole_laps)
    parts.run(parts_laps)
    assert parts_laps.losses == pytest.approx(whole_laps.losses, rel=1e-5)
    assert whole_laps.losses[-1] < whole_laps.losses[0]
    for one, other in zip(whole_model.parameters(), parts_model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_are_clipped_to_the_asked_norm(make_run: MakeRun) -> None:
    loop, model = engine(make_run, size=8, accumulation=1, max_grad_norm=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    loop.run(Laps(1))
    moved = [(a - b).detach() for a, b in zip(model.parameters(), before, strict=True)]
    norm = float(torch.cat([m.flatten() for m in moved]).norm())
    assert norm == pytest.approx(0.5 * 1e-3, rel=1e-2)


def test_bf16_autocast_computes_matmuls_in_bf16(make_run: MakeRun) -> None:
    loop, model = engine(make_run, size=8, accumulation=1, precision="bf16-autocast")
    seen: list[torch.dtype] = []
    model.layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loop.run(Laps(1))
    assert seen == [torch.bfloat16]
    assert model.layer.weight.dtype == torch.float32


def test_fp16_autocast_is_refused_on_a_cpu(make_run: MakeRun) -> None:
    with pytest.raises(ScenarioError, match="fp16-autocast needs a CUDA device"):
        engine(make_run, size=8, accumulation=1, precision="fp16-autocast")
