"""Stages carry the memory that they needed: peaks are those since the stage before."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bench.machine import process_memory as memory_reading
from accel_bench.machine.process_memory import Trace

MIB = 2**20
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def use_for_a_while(size: int) -> None:
    """Touch so many bytes and give them back to the system at once."""
    with mmap.mmap(-1, size) as pages:
        for place in range(0, size, mmap.PAGESIZE):
            pages[place] = 1


class Allocator:
    """The counters of `torch.cuda`, kept as torch keeps them."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.started = True

    def hold(self, size: int) -> None:
        self.now = size
        self.peak = max(self.peak, size)

    def is_initialized(self) -> bool:
        return self.started

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.now

    def memory_stats(self) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.now,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": 2 * self.now,
            "reserved_bytes.all.peak": 2 * self.peak,
            "inactive_split_bytes.all.peak": 7,
        }


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocator]:
    found = Allocator()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))  # type: ignore[arg-type]
    yield found


@needs_linux
def test_the_peak_of_a_stage_is_its_own() -> None:
    trace = Trace()
    use_for_a_while(64 * MIB)
    first, second = trace.mark("first"), trace.mark("second")
    peaks = [stage.host_peak_bytes for stage in (first, second)]
    assert peaks[0] is not None and peaks[1] is not None
    assert first.host_bytes is not None
    assert peaks[0] >= first.host_bytes + 60 * MIB
    assert peaks[1] < peaks[0] - 60 * MIB


@needs_linux
def test_a_mark_that_does_not_forget_leaves_the_peak_to_others() -> None:
    trace = Trace()
    use_for_a_while(64 * MIB)
    kept = trace.mark("window", forget=False)
    assert kept.host_peak_bytes is not None
    assert memory_reading.peak_resident_bytes() == pytest.approx(kept.host_peak_bytes, abs=MIB)


@needs_linux
def test_what_was_in_use_before_can_be_left_out() -> None:
    trace = Trace()
    trace.mark("warm-up")
    use_for_a_while(64 * MIB)
    trace.reset_peak_memory()
    stage = trace.mark("window")
    assert stage.host_peak_bytes is not None and stage.host_bytes is not None
    assert stage.host_peak_bytes < stage.host_bytes + 32 * MIB


def test_without_a_way_to_forget_only_the_first_peak_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_reading, "FORGET_PEAK", tmp_path / "nowhere" / "clear_refs")
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t      20 kB\n")
    monkeypatch.setattr(memory_reading, "PEAK_RESIDENT", status)
    trace = Trace()
    assert [trace.mark(name).host_peak_bytes for name in "ab"] == [20 * 1024, None]


def test_a_system_that_says_nothing_gives_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_reading, "PEAK_RESIDENT", tmp_path / "missing")
    assert Trace().mark("imports").host_peak_bytes is None


def test_stages_carry_what_torch_s_allocator_holds(allocator: Allocator) -> None:
    trace = Trace()
    allocator.hold(900)
    allocator.hold(100)
    load = trace.mark("load_model")
    allocator.hold(300)
    train = trace.mark("window")
    assert load.device_allocated_bytes == 100
    assert (load.device_peak_allocated_bytes, load.device_peak_reserved_bytes) == (900, 1800)
    assert (train.device_peak_allocated_bytes, train.device_reserved_bytes) == (300, 600)
    assert train.device_peak_inactive_split_bytes == 7


def test_a_gpu_that_torch_has_not_started_is_not_started_by_looking(allocator: Allocator) -> None:
    allocator.started = False
    assert Trace().mark("imports").device_allocated_bytes is None


@pytest.mark.gpu
def test_on_a_gpu_the_peak_of_a_stage_is_its_own() -> None:
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    trace = Trace()
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    first, second = trace.mark("load_model"), trace.mark("window")
    peaks = [first.device_peak_allocated_bytes, second.device_peak_allocated_bytes]
    assert peaks[0] is not None and peaks[1] is not None
    assert peaks[0] - peaks[1] == 64 * MIB
    assert second.device_reserved_bytes >= second.device_allocated_bytes >= kept.nbytes
