"""Event files of TensorBoard as a frame, and the scalars of steps that are written as such."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import accel_bench
from accel_bench.errors import AccelBenchError
from accel_bench.interchange import tensorboard_events as events


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
