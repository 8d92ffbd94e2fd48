"""Waiting for a GPU is counted step by step in warm-up, and unknown where there is none."""

from __future__ import annotations

import warnings

import pytest
import torch

from accel_bench.worker.verify.synchronizations import MESSAGE, SynchronizationCounter


def test_on_a_cpu_the_count_is_unknown_and_the_lap_is_the_stopwatch_s_own() -> None:
    counter = SynchronizationCounter("cpu")
    counter.start()

    def lap() -> None:
        """A lap."""

    assert counter.between_laps(lap) is lap
    counter.stop()
    assert counter.per_step() is None


def test_torch_s_warnings_are_counted_between_laps_and_others_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a GPU torch never warns: here its warnings are given by hand."""
    modes: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    counter = SynchronizationCounter("cuda")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        counter.start()

        def warn(times: int) -> None:
            for _ in range(times):
                warnings.warn(f"{MESSAGE} (Triggered internally)", UserWarning, stacklevel=1)

        lap = counter.between_laps(lambda batches, loss: None)
        for times in (5, 2):
            warn(times)
            lap([], 0.0)
        warnings.warn("something else", UserWarning, stacklevel=1)
        counter.stop()
    assert counter.per_step() == 2
    assert [str(warning.message) for warning in shown] == ["something else"]
    assert modes == [1, 0, 1, 0, 1, 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_scaler_waits_for_the_device_in_every_step(scaled: bool) -> None:
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    counter = SynchronizationCounter("cuda")
    lap = counter.between_laps(lambda batches, loss: loss.item())
    counter.start()
    for _ in range(4):
        loss = model(torch.ones(4, 64, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        lap([], loss.detach())
    counter.stop()
    assert counter.per_step() == (1 if scaled else 0)
    assert torch.cuda.get_sync_debug_mode() == 0
