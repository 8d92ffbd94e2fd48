"""The split of a step into its phases."""

from __future__ import annotations

from accel_bench.worker.phases import split_steps


def test_the_step_of_median_duration_is_split_and_its_parts_add_up() -> None:
    names = ["data", "forward", None] * 3
    seconds = [0.1, 0.9, 0.0, 0.3, 0.2, 0.0, 0.4, 0.3, 0.0]
    split = split_steps(names, seconds)  # type: ignore[arg-type]
    assert split.steps == 3
    assert split.seconds == {"data": 0.4, "forward": 0.3}
    assert sum(split.seconds.values()) == split.step_seconds


def test_phases_that_come_several_times_add_up() -> None:
    split = split_steps(["forward", "backward", "forward", "backward", None], [1, 2, 3, 4, 5])
    assert split.seconds == {"forward": 4, "backward": 6}
    assert split.step_seconds == 15
