"""Torch's profiler around real steps: its schedule, its traces, and their validity."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_profile.figures.findings import answer_of, findings_of
from accel_bench_profile.figures.schema import RankProfile
from accel_bench_profile.figures.summarize import figures_of
from accel_bench_profile.plugin import RecordingOptions
from accel_bench_profile.recording import recorder
from accel_bench_profile.recording.recorder import Recorder
from torch import nn

from accel_bench import Run

from ..figures.kineto_trace import read_trace

MakeRun = Callable[..., Run]


class Sleeping(nn.Linear):
    """A layer that can sleep, or read a value, in its forward pass."""

    sleeps, reads = 0.0, False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleeps)
        if self.reads:
            values.sum().item()
        return super().forward(values)


def model_of(**settings: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), Sleeping(64, 64), nn.Linear(64, 1))
    for name, value in settings.items():
        setattr(model[1], name, value)
    return model


def record(run: Run, folder: Path, **request: int) -> RankProfile:
    """Train the run's model under the profiler."""
    part = Recorder(RecordingOptions(**request), run, folder, lambda: None)
    optimizer = torch.optim.SGD(run.unwrapped_model.parameters())
    part.start()
    for _ in range(part.steps):
        part.mark("data")
        loss = run.unwrapped_model(torch.ones(8, 64)).sum()
        part.mark("forward")
        loss.backward()
        part.mark("backward")
        optimizer.step()
        optimizer.zero_grad()
        part.mark("optimizer")
        part.end_step([])
    part.stop()
    return RankProfile(rank=0, device="cpu", window_step_seconds=None, **part.result())


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    made = make_run()
    made.unwrapped_model = model_of()
    return made


def test_each_cycle_leaves_a_trace_for_tensorboard_with_the_same_figures(
    run: Run, tmp_path: Path
) -> None:
    profile = record(run, tmp_path / "rank0", skip=1, wait=1, warmup=1, active=2, repeat=2)
    assert profile.steps == 4
    assert profile.warnings == ()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(profile.traces)
    assert len(names) == 2
    assert all(name.startswith("rank0.") and name.endswith(".pt.trace.json.gz") for name in names)

    again = figures_of([read_trace(tmp_path / name) for name in profile.traces], 15)
    assert again["steps"] == 4
    assert {one.name: one.calls for one in again["kernels"]} == {
        one.name: one.calls for one in profile.kernels
    }
    assert again["step_seconds"] == pytest.approx(profile.step_seconds, rel=0.01)


def test_operations_are_counted_by_step_and_have_kinds(run: Run, tmp_path: Path) -> None:
    profile = record(run, tmp_path / "rank0")
    calls = {one.name: one for one in profile.kernels}
    assert calls["aten::addmm"].calls == 3
    assert calls["aten::addmm"].kind == "matmul"
    assert calls["aten::mm"].calls == 5, "three gradients of weights, two of inputs"
    assert profile.kinds["optimizer"] > 0
    assert profile.host is not None
    assert profile.host.measures == "no operation"
    assert profile.host.launches is None
    assert profile.communication is None


class Paused(torch.autograd.Function):
    """The identity, whose backward function sleeps."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return gradient


def test_a_layer_whose_backward_sleeps_is_the_answer(run: Run, tmp_path: Path) -> None:
    layer = run.unwrapped_model[1]
    plain = layer.forward
    layer.forward = lambda values: Paused.apply(plain(values))
    answer = answer_of(findings_of([record(run, tmp_path / "rank0")]))
    held_up = r"backward of 1 holds up the step: no operation runs for [5-9]\d\.\d ms"
    assert re.match(held_up, answer), answer


def test_a_layer_that_sleeps_is_the_answer(run: Run, tmp_path: Path) -> None:
    run.unwrapped_model = model_of(sleeps=0.05)
    answer = answer_of(findings_of([record(run, tmp_path / "rank0")]))
    held_up = r"forward of 1 holds up the step: no operation runs for [5-9]\d\.\d ms"
    assert re.match(held_up, answer)


def test_a_value_that_is_read_is_the_answer(run: Run, tmp_path: Path) -> None:
    run.unwrapped_model = model_of(reads=True)
    profile = record(run, tmp_path / "rank0")
    (read,) = profile.host.reads if profile.host else ()
    assert (read.place.module, read.place.phase, read.calls) == ("1", "forward", 1)


def test_a_torch_that_names_no_category_gives_the_same_spans() -> None:
    with torch.profiler.profile() as profiler, torch.profiler.record_function("named"):
        model_of(reads=True)(torch.ones(8, 64)).sum().backward()
    events = profiler.profiler.kineto_results.events()
    assert {recorder.category_of(one) for one in events} >= {"cpu_op", "user_annotation"}
    assert [recorder.category_by_name(one) for one in events] == [
        recorder.category_of(one) for one in events
    ]


class OldEvent:
    """An event as torch 2.11 gives it, which knows neither its category nor Python's functions."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def __getattr__(self, name: str) -> Any:
        if name in ("activity_type", "is_python_function"):
            raise AttributeError(f"'torch._C._autograd._KinetoEvent' has no attribute '{name}'")
        return getattr(self._event, name)


def test_the_oldest_torch_s_events_give_the_same_spans(run: Run) -> None:
    with torch.profiler.profile() as profiler:
        run.unwrapped_model(torch.ones(8, 64)).sum().backward()
    events = profiler.profiler.kineto_results.events()
    spans = [recorder.span_of(OldEvent(one)) for one in events]
    assert any(span is not None and span.name == "aten::addmm" for span in spans)
    assert spans == [recorder.span_of(one) for one in events]


def test_nothing_stays_on_the_model(run: Run, tmp_path: Path) -> None:
    record(run, tmp_path / "rank0")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.unwrapped_model.modules())


def test_compiled_modules_get_no_ranges_within(run: Run, tmp_path: Path) -> None:
    model = model_of()
    model[1] = nn.Sequential(nn.Linear(64, 64))
    model[1].compile(backend="eager")
    run.unwrapped_model = model
    profile = record(run, tmp_path / "rank0")
    with gzip.open(tmp_path / profile.traces[0], "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    ranges = {name for name in names if name and name.startswith("module: ")}
    assert ranges == {"module: (model)", "module: 0", "module: 1", "module: 2"}


def test_a_folder_that_cannot_be_written_costs_the_trace_and_no_figure(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "profile").write_text("a file in its place")
    profile = record(run, tmp_path / "profile" / "rank0")
    assert profile.steps == 3
    assert profile.traces == ()
    (warning,) = profile.warnings
    assert "the trace could not be written" in warning
    assert "figures are complete" in warning


def test_a_trace_that_was_cut_short_is_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch does not say when the disk is full: the file ends in the middle."""

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:1000])
        whole(path)

    whole = recorder.check_whole
    monkeypatch.setattr(recorder, "check_whole", cut)
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    profile = record(run, tmp_path / "profile" / "rank0")
    assert profile.steps == 3
    assert "has no room for it" in profile.warnings[0]
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [], "and nothing of it is left"


def test_the_traces_of_a_rank_are_bounded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_EVENTS", 500)
    profile = record(run, tmp_path / "rank0", active=1, repeat=20)
    assert profile.steps == 20, "the figures are of all cycles"
    assert 0 < len(profile.traces) < 20
    assert "record less with --active or --repeat" in profile.warnings[0]


def test_cycles_that_need_too_much_memory_are_in_no_figure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_SPANS", 10)
    profile = record(run, tmp_path / "rank0", active=1, repeat=3)
    assert profile.steps == 1, "the first cycle is kept whole"
    assert len(profile.traces) == 3
    assert [text.split(":")[0] for text in profile.warnings] == [
        "cycle 2 is in no figure",
        "cycle 3 is in no figure",
    ]


@pytest.mark.parametrize(
    ("request_", "synchronized"),
    [
        ({"skip": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}, [3, 5, 7, 9]),
        ({"warmup": 0, "active": 2, "repeat": 2}, [2, 4]),
    ],
)
def test_the_device_is_waited_for_where_recorded_steps_begin_and_end(
    run: Run, tmp_path: Path, request_: dict[str, int], synchronized: list[int]
) -> None:
    """Else kernels of the warm-up fall into what is recorded, and the last ones out of it."""
    calls: list[str] = []

    class Stepping:
        def step(self) -> None:
            calls.append("step")

    waiting = lambda: calls.append("synchronize")  # noqa: E731
    part = Recorder(RecordingOptions(**request_), run, tmp_path / "rank0", waiting)
    part._profiler = Stepping()
    expected = []
    for number in range(1, part.steps + 1):
        part.end_step([])
        expected += ["synchronize"] * (number in synchronized) + ["step"]
    assert calls == expected
