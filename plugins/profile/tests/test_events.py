"""Scalars of steps are written as event files that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path

from accel_bench_profile import collect

import accel_bench


def test_scalars_that_are_written_are_read_by_tensorboard_s_own_reader(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = [
        (step, {collect.WALL_TIME: 0.5, collect.ELAPSED_TIME: 0.5 * step, collect.MEMORY: 2.0**20})
        for step in (1, 2, 3)
    ]
    collect.write_scalars(tmp_path / "rank0", rows)
    found = EventAccumulator(str(tmp_path / "rank0")).Reload()
    assert [one.step for one in found.Scalars("Wall Time")] == [1, 2, 3]
    assert [one.value for one in found.Scalars("Elapsed Time")] == [0.5, 1.0, 1.5]
    frame = accel_bench.read_events(tmp_path)
    assert list(frame.columns) == ["run", "step", "wall_time", *rows[0][1]]
    assert {*frame["run"]} == {"rank0"}
