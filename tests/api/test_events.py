"""Event files of TensorBoard as a frame, and the scalars of steps that are written as such."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from accel_bench_trackers.naming import WINDOW_TAGS
from accel_bench_trackers.tensorboard import TensorBoard
from analysis_factory import LORA, make_rounds

import accel_bench
from accel_bench import Metric, TimeSeries
from accel_bench.errors import AccelBenchError
from accel_bench.interchange import tensorboard_events as events

USE = Metric(
    name="use",
    value=60.0,
    unit="percent",
    scope="device",
    rank=0,
    series=TimeSeries(times=(5.0, 5.25), values=(40.0, 80.0)),
)


def test_tracked_runs_are_read_as_a_frame_by_one_call(tmp_path: Path) -> None:
    (result,) = make_rounds(LORA, [0.2])
    tracker = TensorBoard(TensorBoard.Options(), "tensorboard")
    tracker.record_result(result.model_copy(update={"metrics": (USE,)}), None, tmp_path)
    frame = accel_bench.read_events(tmp_path / "trackers")
    steps = frame[frame["Wall Time"].notna()]
    window = result.ranks[0].window
    assert window is not None
    seconds = [sample.seconds for sample in window.samples]
    assert list(steps["step"]) == [sample.step for sample in window.samples]
    assert list(steps["Wall Time"]) == pytest.approx(seconds)
    assert list(steps["Elapsed Time"]) == pytest.approx([seconds[0], sum(seconds)])
    rates = [sample.real_tokens / sample.seconds for sample in window.samples]
    assert list(steps["Elements per Second"]) == pytest.approx(rates)
    assert len(steps) / steps["Wall Time"].sum() == pytest.approx(len(seconds) / sum(seconds))
    series = frame[frame["run"].str.endswith("/series")].dropna(axis="columns", how="all")
    (name,) = {*series} - {"run", "step", "wall_time"}
    assert name == "use_percent_rank0"
    assert list(series["step"]) == [0, 250]
    assert list(series[name]) == [40, 80]


def test_scalars_that_are_written_are_read_by_tensorboard_s_own_reader(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = [
        (step, {events.WALL_TIME: 0.5, events.ELAPSED_TIME: 0.5 * step, events.MEMORY: 2.0**20})
        for step in (1, 2, 3)
    ]
    events.write_scalars(tmp_path / "rank0", rows)
    found = EventAccumulator(str(tmp_path / "rank0")).Reload()
    assert [one.step for one in found.Scalars("Wall Time")] == [1, 2, 3]
    assert [one.value for one in found.Scalars("Elapsed Time")] == [0.5, 1.0, 1.5]
    frame = accel_bench.read_events(tmp_path)
    assert list(frame.columns) == ["run", "step", "wall_time", *rows[0][1]]
    assert {*frame["run"]} == {"rank0"}
    assert {*WINDOW_TAGS} == {events.WALL_TIME, events.ELAPSED_TIME, events.ELEMENTS_PER_SECOND}


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_an_event_file_that_is_read_in_part_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    events.write_scalars(tmp_path, [(step, {"loss": 1.0}) for step in range(9)])
    assert len(accel_bench.read_events(tmp_path)) == 9
    assert caplog.text == ""
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "cut off":
        del content[-5:]
    else:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert len(accel_bench.read_events(tmp_path)) < 9
    assert f"{file}: damaged, or still written: its last " in caplog.text


def test_a_folder_without_events_and_a_missing_library_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AccelBenchError, match="holds no event files of TensorBoard"):
        accel_bench.read_events(tmp_path)
    (tmp_path / "events.out.tfevents.1").touch()
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(AccelBenchError, match=r"pip install 'accel-bench\[tensorboard\]'"):
        accel_bench.read_events(tmp_path)
