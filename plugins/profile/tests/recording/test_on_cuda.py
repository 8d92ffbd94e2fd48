"""What is done on CUDA alone, in the order of its calls.

There is no device here: a stand-in notes the calls of torch's functions, which only a device lets
run. The section `profile-parts` of `benchmarks.gpu` runs marks and a snapshot for real; none runs
the snapshot of a device without memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_profile.recording.ranges import NsightMarks
from torch import nn

from accel_bench import Device, Run
from accel_bench.builtin.memory import Memory, MemoryOptions
from accel_bench.testing import close_run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Recorded calls of CUDA functions."""
    noted: list[str] = []

    def noting(what: str) -> Callable[..., Any]:
        @contextlib.contextmanager
        def around(name: str = "") -> Iterator[None]:
            noted.append(f"{what}{name}")
            yield
            noted.append(f"end of {what}{name}")

        return around

    def record(enabled: str | None = "all", **_: Any) -> None:
        noted.append(f"history: {enabled}")

    def observe(observer: Callable[..., None]) -> None:
        noted.append("observer")
        monkeypatch.setattr(torch.cuda, "fake_out_of_memory", observer, raising=False)

    monkeypatch.setattr(torch.cuda.profiler, "profile", noting("capture"))
    monkeypatch.setattr(torch.cuda.nvtx, "range", noting(""))
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    dump = torch.cuda.memory
    monkeypatch.setattr(dump, "_dump_snapshot", lambda path: Path(path).write_bytes(b"pickle"))
    attach = "_cuda_attach_out_of_memory_observer"
    monkeypatch.setattr(torch._C, attach, observe, raising=False)
    return noted


def on_cuda(make_run: Callable[..., Run]) -> Run:
    run = make_run()
    run.device = Device("cuda")
    run.model = run.unwrapped_model = nn.Sequential(nn.Linear(2, 2))
    return run


def test_active_steps_are_captured_with_ranges_of_steps_phases_and_modules(
    make_run: Callable[..., Run], calls: list[str]
) -> None:
    run = on_cuda(make_run)
    part = NsightMarks(run, quiet_steps=1, active_steps=1)
    assert part.steps == 2
    part.start()
    for _ in range(part.steps):
        part.mark("data")
        run.model(torch.ones(1, 2))
        part.mark("forward")
        part.mark("optimizer")
        part.end_step([])
    part.stop()
    # Without a recorded step, `accel-bench profile` would end as failed.
    assert part.result() == {"recorder": "nsight", "steps": 1}
    step = ["phase: data", "end of phase: data", "phase: forward", "0", "end of 0"]
    step += ["end of phase: forward", "phase: backward", "end of phase: backward"]
    assert calls == ["capture", "step 1", *step, "end of step 1", "end of capture"]


def test_nsight_needs_a_device(make_run: Callable[..., Run]) -> None:
    with pytest.raises(RuntimeError, match="records CUDA devices, and this run has none"):
        NsightMarks(make_run(), 0, 1).start()


def test_out_of_memory_leaves_a_snapshot_and_the_window_has_no_history(
    make_run: Callable[..., Run], calls: list[str]
) -> None:
    run = on_cuda(make_run)
    Memory(MemoryOptions()).prepare_process(run)
    assert calls == []
    asked = Memory(MemoryOptions(oom_snapshot=True))
    asked.prepare_process(run)
    out_of_memory: Any = torch.cuda
    out_of_memory.fake_out_of_memory(0, 1, 2, 3)
    assert (run.folder / "rank0.oom_snapshot.pickle").read_bytes() == b"pickle"
    asked.start_metrics(run)
    close_run(run)
    assert calls == ["history: all", "observer", "history: None", "history: None"]
