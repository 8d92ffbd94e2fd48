"""What counts as a disturbance of a window, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from accel_bench import Sample
from accel_bench.machine.devices import device_type
from accel_bench.worker.stopwatch import WindowMonitor, out_of_range


def steps(seconds: Sequence[float], tokens: Sequence[int] | None = None) -> list[Sample]:
    """A window of those step times."""
    counts = tokens or [100] * len(seconds)
    return [
        Sample(
            step=number,
            seconds=spent,
            sequences=1,
            processed_tokens=count,
            real_tokens=count,
            supervised_tokens=count,
            loss=1.0,
        )
        for number, (spent, count) in enumerate(zip(seconds, counts, strict=True))
    ]


def test_a_step_many_times_longer_than_the_others_is_out_of_range() -> None:
    assert [s.step for s in out_of_range(steps([0.1, 0.1, 0.6, 0.1]))] == [2]


def test_a_step_that_is_longer_for_its_tokens_is_not() -> None:
    assert out_of_range(steps([0.1, 0.1, 0.6, 0.1], [100, 100, 600, 100])) == []


def test_a_hiccup_of_a_few_milliseconds_is_not() -> None:
    assert out_of_range(steps([0.001, 0.001, 0.03, 0.001])) == []


def test_a_quiet_window_has_no_disturbance() -> None:
    watch = WindowMonitor(device_type("cpu"))
    watch.start()
    assert watch.instabilities(steps([0.1] * 5)) == []


def test_a_jump_is_named_with_its_step() -> None:
    watch = WindowMonitor(device_type("cpu"))
    watch.start()
    (reason,) = watch.instabilities(steps([0.1, 0.1, 0.9]))
    assert "step 2 took 0.9 s" in reason


@pytest.mark.long
def test_a_graph_that_is_compiled_within_the_window_is_found() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.ones(2))
    watch = WindowMonitor(device_type("cpu"))
    watch.start()
    compiled(torch.ones(2))
    assert watch.instabilities([]) == []
    compiled(torch.ones(3))
    assert watch.instabilities([]) == ["1 graph(s) compiled within the window"]
    torch.compiler.reset()
