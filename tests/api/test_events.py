"""Event files of TensorBoard as a frame."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import accel_bench
from accel_bench.errors import AccelBenchError


def write(folder: Path, steps: int) -> None:
    """Write an event file with a loss of each step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in range(steps):
        values = [Summary.Value(tag="loss", simple_value=1.0)]
        writer.add_event(Event(wall_time=0.0, step=step, summary=Summary(value=values)))
    writer.close()


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_an_event_file_that_is_read_in_part_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    write(tmp_path, 9)
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
