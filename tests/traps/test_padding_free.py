"""Sequences in one row, told apart by their positions: right without a cache, wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_bench import Run
from accel_bench.worker.verify.effective import differences, read_effective
from accel_bench.worker.verify.gradient_flow import FirstStepProbe

LENGTHS = (7, 12, 5)


def sequences() -> list[torch.Tensor]:
    """Sequences of different lengths, of shape (length,)."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 128, (length,), generator=generator) for length in LENGTHS]


def summed_loss(model: Any, **inputs: torch.Tensor) -> torch.Tensor:
    """Sum over supervised tokens, as all engines ask for."""
    loss: torch.Tensor = model(**inputs, num_items_in_batch=1).loss
    return loss


def separate(model: Any) -> float:
    """The loss of each sequence in a row of its own."""
    losses = [summed_loss(model, input_ids=s[None], labels=s[None]) for s in sequences()]
    return sum(loss.item() for loss in losses)


def row() -> dict[str, torch.Tensor]:
    """All of them in one row; the first token of each is nobody's target."""
    labels = [torch.cat([torch.tensor([-100]), s[1:]]) for s in sequences()]
    return {
        "input_ids": torch.cat(sequences())[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None],
    }


def trained(run: Run) -> tuple[list[str], list[str]]:
    """Take a step on that row, watched, and return what is found to differ."""
    probe = FirstStepProbe(run)
    try:
        summed_loss(run.model, **row()).backward()
        run.optimizer.step()
    finally:
        probe.remove()
    return differences(run, read_effective(run, probe))


def test_our_models_keep_no_cache_and_the_losses_are_those_of_separate_sequences(
    llama_run: Callable[..., Run],
) -> None:
    run = llama_run()
    assert run.model.config.use_cache is False
    assert summed_loss(run.model, **row()).item() == pytest.approx(separate(run.model), rel=1e-6)
    assert trained(run) == ([], [])


def test_with_a_cache_the_losses_differ_and_the_run_is_invalid(
    llama_run: Callable[..., Run],
) -> None:
    run = llama_run()
    alone = separate(run.model)
    run.model.config.use_cache = True
    assert abs(summed_loss(run.model, **row()).item() / alone - 1) > 1e-4
    _, invalid = trained(run)
    assert invalid == [
        "sequences lie in one row and the model keeps a cache, so they attend to one another; "
        "set use_cache to false"
    ]


def test_a_cache_that_a_single_call_asks_for_is_seen_too(llama_run: Callable[..., Run]) -> None:
    run = llama_run()
    probe = FirstStepProbe(run)
    run.model(**row(), use_cache=True)
    probe.remove()
    assert (probe.use_cache, probe.padding_free) == (True, True)


def test_a_cache_beside_ordinary_rows_costs_memory_and_is_said(
    llama_run: Callable[..., Run],
) -> None:
    run = llama_run()
    run.model.config.use_cache = True
    degraded, invalid = differences(run, read_effective(run))
    assert degraded == ["the model keeps a key-value cache while it trains"]
    assert invalid == []
