"""Memory by category over a few steps, and saved tensors by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_profile.recording import memory
from accel_bench_profile.recording.memory import CategoryChange, MemoryRecorder, peak_of
from torch import nn

from accel_bench import Batch, Run, TokenCounts

WIDTH, SAMPLES = 64, 256
WEIGHTS = 2 * WIDTH * WIDTH * 4
HIDDEN = SAMPLES * WIDTH * 4


class Model(nn.Module):
    """Two products around a ReLU; called as transformers' models are."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.act = nn.ReLU()
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, num_items_in_batch: int = 1) -> Any:
        loss = self.down(self.act(self.up(x))).sum() / num_items_in_batch
        return type("Output", (), {"loss": loss})


def batch() -> Batch:
    counts = TokenCounts(SAMPLES, SAMPLES, SAMPLES)
    return Batch({"x": torch.randn(SAMPLES, WIDTH)}, SAMPLES, counts, SAMPLES)


def test_a_peak_has_the_bytes_of_each_category_and_saved_bytes_those_of_each_module(
    make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CategoryChange] = []

    def noting(changes: Iterable[CategoryChange]) -> Any:
        seen.extend(changes)
        return peak_of(seen)

    monkeypatch.setattr(memory, "peak_of", noting)
    run = make_run()
    run.model = run.unwrapped_model = model = Model()
    run.batches = iter(batch, None)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(**next(run.batches).inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    part = MemoryRecorder(run, tmp_path)
    part.start()
    for _ in range(part.steps):
        step()
        part.end_step([])
    part.stop()
    found = part.result()
    peak = found["memory"].peak
    assert peak["weights"] == WEIGHTS
    assert peak["optimizer state"] >= 2 * WEIGHTS
    assert found["memory"].peak_bytes == sum(peak.values()) > 3 * WEIGHTS + 2 * HIDDEN
    most: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for _, category, size in seen:
        used[category] += size
        most |= used
    assert most["gradients"] == WEIGHTS
    assert most["inputs"] >= HIDDEN
    assert most["activations"] >= 2 * HIDDEN
    assert found["memory"].snapshot == ""
    # What the first product reads is kept by it, what the second reads by the ReLU before it.
    assert found["saved"] == {"up": HIDDEN, "act": HIDDEN}


def test_a_model_that_takes_no_pass_of_its_own_is_a_warning(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run()
    run.model = run.unwrapped_model = Model()
    run.batches = iter([Batch({"y": torch.ones(1)}, 1, TokenCounts(1, 1, 1), 1)])
    part = MemoryRecorder(run, tmp_path)
    part.start()
    part.stop()
    (warning,) = part.result()["warnings"]
    assert "saved for the backward pass: TypeError" in warning


def test_what_changes_at_one_moment_is_one_sum() -> None:
    changes = [(at, "weights", size) for at, size in enumerate([5, 9, -9, 1, 1])]
    found = peak_of([(-1, "inputs", 2), *changes, (4, "inputs", -2)])
    assert found is not None
    assert (found.peak_bytes, found.peak) == (16, {"weights": 14, "inputs": 2})
    at_once = peak_of([(0, "weights", 9), (0, "inputs", -4)])
    assert at_once is not None and at_once.peak_bytes == 5
    assert peak_of([]) is None
