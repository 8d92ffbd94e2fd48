"""The file with the exact change of the trained weights, and why there may be none."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accel_bench.job import SPARE_DISK_BYTES
from accel_bench.result import WeightUpdate
from accel_bench.worker.verify import update as kept_update
from accel_bench.worker.verify.update import UpdateSketch

LARGE = 2**20


def make_model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(40, 60), torch.nn.Linear(60, 30, bias=False)]
    return torch.nn.Sequential(*layers).to(dtype)


def vector(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().double()


def step(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            shape, dtype = weights.shape, weights.dtype
            weights.add_(torch.randn(shape, generator=generator, dtype=dtype), alpha=1e-3)


def train(folder: Path, model: torch.nn.Module, most: int = LARGE, rank: int = 0) -> WeightUpdate:
    run: Any = SimpleNamespace(unwrapped_model=model, rank=rank)
    update = UpdateSketch(run, folder / "rank0.update", most)
    step(model)
    return update.finish(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [kept_update.BLOCK, 7])
def test_the_file_holds_the_change_and_the_sketch_is_within_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, block: int
) -> None:
    monkeypatch.setattr(kept_update, "BLOCK", block)
    model = make_model(dtype)
    start = vector(model)
    found = train(tmp_path, model)
    change = (vector(model) - start).numpy()
    np.testing.assert_allclose(np.fromfile(tmp_path / "rank0.update", "<f4"), change, rtol=1e-6)
    assert found.kept_bytes == (tmp_path / "rank0.update").stat().st_size == 4 * change.size
    exact = math.hypot(*(one.norm or 0.0 for one in found.tensors.values()))
    assert exact == pytest.approx(float(np.linalg.norm(change)))
    assert found.norm == pytest.approx(exact, rel=0.5)  # two standard errors


@pytest.mark.parametrize(
    ("most", "free", "reason"),
    [
        (17_000, LARGE, "it takes 16.6 KiB, and 16.6 KiB may be used"),
        (LARGE, 0, "it takes 16.6 KiB, and 0 bytes may be used"),
    ],
)
def test_above_the_limit_or_on_a_full_disk_the_sketch_alone_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, free: int, reason: str
) -> None:
    usage = SimpleNamespace(free=SPARE_DISK_BYTES + free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    found = train(tmp_path, make_model(), most)
    assert (found.kept_bytes, found.kept_reason) == (0, reason)
    assert not list(tmp_path.iterdir())
    assert {one.norm for one in found.tensors.values()} == {None}
    assert found.norm > 0


def test_a_disk_that_fills_up_meanwhile_costs_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    found = train(tmp_path, make_model())
    assert found.kept_reason == "it could not be written: No space left on device"
    assert len(found.tensors) == 3
    assert not list(tmp_path.iterdir())


def test_what_a_file_in_float32_cannot_hold_is_not_kept(tmp_path: Path) -> None:
    assert "0.weight is float64" in train(tmp_path, make_model(torch.float64)).kept_reason
    model = make_model()
    update = UpdateSketch(
        SimpleNamespace(unwrapped_model=model, rank=0),  # type: ignore[arg-type]
        tmp_path / "rank0.update",
        LARGE,
    )
    model[1] = torch.nn.Identity()  # type: ignore[operator]
    assert update.finish(1).kept_reason == "a tensor is gone, or not finite"
    assert not list(tmp_path.iterdir())


def test_a_run_that_ends_before_and_other_ranks_leave_no_file(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(unwrapped_model=make_model(), rank=0)
    update = UpdateSketch(run, tmp_path / "rank0.update", LARGE)
    assert (tmp_path / "rank0.update").exists()
    update.close()
    assert train(tmp_path, make_model(), rank=1).kept_reason == ""
    assert train(tmp_path, make_model(), most=0).kept_reason == ""
    assert not list(tmp_path.iterdir())
