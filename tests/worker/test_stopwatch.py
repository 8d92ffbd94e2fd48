"""The stopwatch: what it counts, what it leaves alone, and when it believes in a plateau."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

from accel_bench import Batch, TokenCounts
from accel_bench.errors import InvalidRunError
from accel_bench.job import HEARTBEAT_STEP
from accel_bench.machine.clock import monotonic
from accel_bench.scenario.settings import LONGEST_WARMUP
from accel_bench.worker.after_window import split_steps
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.stopwatch import WindowStopwatch, is_plateau

BATCH = Batch({}, 2, TokenCounts(processed=20, real=16, supervised=14), 14)


class CountingDevice(HostClock):
    """A device clock that counts what is asked of it, and answers with seconds of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def reserve(self, marks: int) -> None:
        self.calls.append("reserve")

    def mark(self) -> None:
        self.calls.append("mark")
        super().mark()

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def read(self) -> tuple[list[float], list[float] | None]:
        host, _ = super().read()
        return host, [0.5] * len(host)


@pytest.fixture(autouse=True)
def nothing_to_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each window the heap is collected, and that of a test process is large."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def heartbeat(tmp_path: Path) -> Heartbeat:
    return Heartbeat(tmp_path / "beat")


def drive(stopwatch: WindowStopwatch, loss: Any = 1.0) -> int:
    stopwatch.start()
    laps = 0
    while stopwatch.running:
        stopwatch.lap([BATCH, BATCH], loss)
        laps += 1
    return laps


def test_it_runs_the_warmup_and_then_the_window(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=3, steps=4)
    assert drive(stopwatch) == 7
    window = stopwatch.window()
    assert [sample.step for sample in window.warmup] == [0, 1, 2]
    assert [sample.step for sample in window.samples] == [3, 4, 5, 6]
    assert window.started <= window.ended


def test_a_clock_that_was_put_in_the_place_of_time_s_times_nothing(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin can replace what `time` holds, and not what was taken from it before."""
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time"):
        monkeypatch.setattr(time, name, lambda: 0)
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=2)
    drive(stopwatch)
    window = stopwatch.window()
    assert all(sample.seconds > 0 for sample in (*window.warmup, *window.samples))
    assert 0 < window.started < window.ended


def test_it_adds_up_the_counts_of_the_micro_batches(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=1)
    drive(stopwatch, loss=2.5)
    sample = stopwatch.window().samples[0]
    assert (sample.sequences, sample.processed_tokens) == (4, 40)
    assert (sample.real_tokens, sample.supervised_tokens) == (32, 28)
    assert sample.loss == 2.5


def test_pairs_are_added_up_and_unknown_where_one_micro_batch_did_not_count_them(
    heartbeat: Heartbeat,
) -> None:
    counted = Batch({}, 1, TokenCounts(4, 3, 2, real_pairs=9, processed_pairs=16), 2)
    for batches, pairs in (([counted, counted], (18, 32)), ([counted, BATCH], (None, None))):
        stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=1)
        stopwatch.start()
        while stopwatch.running:
            stopwatch.lap(batches, 1.0)
        sample = stopwatch.window().samples[0]
        assert (sample.real_pairs, sample.processed_pairs) == pairs


def test_a_loss_that_is_not_finite_is_null(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=1)
    drive(stopwatch, loss=float("nan"))
    assert stopwatch.window().samples[0].loss is None


def test_it_synchronises_the_device_once_for_the_whole_window(heartbeat: Heartbeat) -> None:
    device = CountingDevice()
    stopwatch = WindowStopwatch(
        device,
        heartbeat,
        warmup=2,
        steps=10,
        before_window=lambda: device.calls.append("before_window"),
    )
    drive(stopwatch)
    window = device.calls[device.calls.index("before_window") + 1 :]
    assert window == ["reserve", "synchronize", *["mark"] * 11, "synchronize"]


def test_the_window_ends_once_losses_are_read_and_the_device_is_idle(heartbeat: Heartbeat) -> None:
    device = CountingDevice()
    read: list[float] = []

    class PutOff:
        """A loss that is computed when it is read."""

        def __float__(self) -> float:
            device.calls.append("loss")
            read.append(monotonic())
            return 1.5

    stopwatch = WindowStopwatch(device, heartbeat, warmup=1, steps=3)
    drive(stopwatch, loss=PutOff())
    # The warm-up step is not over before its loss is there either.
    assert device.calls[2:5] == ["mark", "loss", "synchronize"]
    assert device.calls[-7:] == [*["mark"] * 3, *["loss"] * 3, "synchronize"]
    window = stopwatch.window()
    assert window.started < read[-3] < read[-1] < window.ended
    assert [one.loss for one in window.samples] == [1.5] * 3


def test_sync_each_waits_for_every_step(heartbeat: Heartbeat) -> None:
    device = CountingDevice()
    stopwatch = WindowStopwatch(device, heartbeat, warmup=1, steps=3, synchronize_each=True)
    drive(stopwatch)
    assert device.calls[-7:] == ["synchronize", "mark"] * 3 + ["synchronize"]


def test_device_seconds_are_the_seconds_of_a_step_where_there_are_any(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(CountingDevice(), heartbeat, warmup=1, steps=2)
    drive(stopwatch)
    samples = stopwatch.window().samples
    assert [(s.seconds, s.device_seconds) for s in samples] == [(0.5, 0.5)] * 2


def test_the_heartbeat_holds_the_steps_that_have_ended(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=2, steps=3)
    drive(stopwatch)
    assert heartbeat.page[HEARTBEAT_STEP] == 5
    assert heartbeat.phase == "window"


def test_before_window_is_called_once_after_the_warmup(heartbeat: Heartbeat) -> None:
    seen: list[int] = []
    stopwatch = WindowStopwatch(
        HostClock(),
        heartbeat,
        warmup=2,
        steps=3,
        before_window=lambda: seen.append(heartbeat.page[HEARTBEAT_STEP]),
    )
    drive(stopwatch)
    assert seen == [2]


def test_objects_are_frozen_for_the_window_only(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=2)
    stopwatch.start()
    stopwatch.lap([BATCH], 1.0)
    assert gc.get_freeze_count() > 0
    stopwatch.lap([BATCH], 1.0)
    stopwatch.lap([BATCH], 1.0)
    assert gc.get_freeze_count() == 0


def test_an_automatic_warmup_ends_at_the_cap_where_there_is_no_plateau(
    heartbeat: Heartbeat,
) -> None:
    class Noisy(CountingDevice):
        def read(self) -> tuple[list[float], list[float] | None]:
            host, _ = super().read()
            return host, [float(2 ** len(self.calls))] * len(host)

    stopwatch = WindowStopwatch(Noisy(), heartbeat, warmup=None, steps=1)
    drive(stopwatch)
    assert len(stopwatch.window().warmup) == LONGEST_WARMUP


def test_an_automatic_warmup_ends_on_a_plateau(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(CountingDevice(), heartbeat, warmup=None, steps=1)
    drive(stopwatch)
    assert len(stopwatch.window().warmup) == 10


def test_ranks_open_the_window_only_when_all_are_warm(heartbeat: Heartbeat) -> None:
    answers = iter([False, False, False, True, True])
    stopwatch = WindowStopwatch(
        HostClock(), heartbeat, warmup=1, steps=1, agree=lambda ready: next(answers)
    )
    drive(stopwatch)
    assert len(stopwatch.window().warmup) == 4


def test_a_disturbed_window_is_kept_apart_and_measured_again(heartbeat: Heartbeat) -> None:
    opened: list[int] = []
    found = iter([["it compiled again"], []])
    stopwatch = WindowStopwatch(
        HostClock(),
        heartbeat,
        warmup=1,
        steps=2,
        before_window=lambda: opened.append(1),
        instabilities=lambda samples: next(found),
    )
    assert drive(stopwatch) == 5
    window = stopwatch.window()
    assert [sample.step for sample in window.discarded] == [1, 2]
    assert [sample.step for sample in window.samples] == [3, 4]
    assert window.instabilities == ("it compiled again",)
    assert len(opened) == 2


def test_after_two_disturbed_windows_the_third_is_kept_with_what_disturbed_it(
    heartbeat: Heartbeat,
) -> None:
    stopwatch = WindowStopwatch(
        HostClock(), heartbeat, warmup=1, steps=2, instabilities=lambda samples: ["a jump"]
    )
    drive(stopwatch)
    window = stopwatch.window()
    assert [sample.step for sample in window.samples] == [5, 6]
    assert (len(window.discarded), len(window.instabilities)) == (4, 3)


def test_ranks_discard_a_window_together(heartbeat: Heartbeat) -> None:
    answers = iter([True, False, True])
    stopwatch = WindowStopwatch(
        HostClock(), heartbeat, warmup=1, steps=1, agree=lambda ready: next(answers)
    )
    drive(stopwatch)
    assert stopwatch.window().instabilities == ("the window of another rank was disturbed",)


def test_phases_are_split_in_steps_of_their_own_after_the_window(heartbeat: Heartbeat) -> None:
    device = CountingDevice()
    stopwatch = WindowStopwatch(
        device,
        heartbeat,
        warmup=1,
        steps=2,
        phase_steps=3,
        after_window=lambda window: device.calls.append("after_window"),
    )
    stopwatch.start()
    while stopwatch.running:
        for phase in ("data", "forward", "forward", "optimizer"):
            stopwatch.mark(phase)
        stopwatch.lap([BATCH], 1.0)
    assert stopwatch.phases is not None
    assert stopwatch.phases.steps == 3
    assert stopwatch.phases.seconds == {"data": 0.5, "forward": 1.0, "optimizer": 0.5}
    assert stopwatch.phases.step_seconds == 2.5
    assert device.calls[device.calls.index("after_window") :].count("mark") == 1 + 3 * 5
    assert len(stopwatch.window().samples) == 2


def test_an_engine_that_marks_no_phases_takes_no_further_step(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=2, phase_steps=3)
    assert drive(stopwatch) == 3
    assert stopwatch.phases is None


@pytest.mark.parametrize(
    ("seconds", "plateau"),
    [
        ([1.0] * 9, False),
        ([1.0] * 10, True),
        ([9.0] + [1.0] * 10, True),
        ([2.0] * 5 + [1.0] * 5, False),
        ([1.0] * 5 + [1.009] * 5, True),
        ([1.0] * 5 + [1.02] * 5, False),
        ([1.0, 1.0, 1.0, 1.0, 7.0] * 2, True),
    ],
)
def test_a_plateau_is_two_medians_within_one_percent(seconds: list[float], plateau: bool) -> None:
    assert is_plateau(seconds) is plateau


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


def drive_with_pauses(stopwatch: WindowStopwatch, steps: set[int]) -> None:
    """Take laps of 2 ms after pauses of 10 ms, in these steps."""
    stopwatch.start()
    lap = 0
    while stopwatch.running:
        if lap in steps:
            time.sleep(0.01)
            stopwatch.resume()
        time.sleep(0.002)
        stopwatch.lap([BATCH], 1.0)
        lap += 1


def test_what_an_engine_prepares_is_left_out_of_its_steps(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=2, steps=4, may_resume=True)
    drive_with_pauses(stopwatch, {0, 1, 2, 4, 5})
    window = stopwatch.window()
    assert len(window.samples) == 4
    assert window.left_out_seconds >= 0.03
    whole = window.ended - window.started
    assert window.seconds == pytest.approx(whole - window.left_out_seconds)
    assert window.seconds == pytest.approx(sum(one.seconds for one in window.samples), abs=2e-3)


def test_what_the_warm_up_left_out_is_not_that_of_the_window(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=2, steps=2, may_resume=True)
    drive_with_pauses(stopwatch, {0, 1})
    assert stopwatch.window().left_out_seconds == 0


def test_a_device_s_own_seconds_are_left_out_where_it_has_a_clock(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(CountingDevice(), heartbeat, warmup=1, steps=3, may_resume=True)
    drive_with_pauses(stopwatch, {1, 2, 3})
    window = stopwatch.window()
    assert window.left_out_seconds == 1.5  # each of its intervals takes half a second
    assert [one.device_seconds for one in window.samples] == [0.5] * 3


def test_an_engine_that_trains_leaves_no_time_out(heartbeat: Heartbeat) -> None:
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=1, steps=2)
    with pytest.raises(InvalidRunError, match=r"stopwatch\.resume\(\), which leaves time out"):
        drive_with_pauses(stopwatch, {0})
    drive(stopwatch)
    with pytest.raises(InvalidRunError, match="leaves time out"):
        stopwatch.resume()
    assert stopwatch.window().left_out_seconds == 0
