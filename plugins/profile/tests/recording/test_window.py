"""The window of a profile: parts take steps in turn, and errors lose no results."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.profiler  # noqa: F401 - which imports what a test takes away
from accel_bench_profile.plugin import RecordingOptions
from accel_bench_profile.recording.window import ProfileWindow, parts_of

from accel_bench import Batch, Run, TokenCounts
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.stopwatch import WindowStopwatch

BATCH = Batch({}, 1, TokenCounts(8, 8, 7), 7)


class Noting:
    """A part that records its calls, and raises in a chosen one."""

    def __init__(self, name: str, steps: int, calls: list[str], fails: str = "") -> None:
        self.name, self.steps, self._calls, self._fails = name, steps, calls, fails

    def _note(self, what: str) -> None:
        self._calls.append(f"{self.name} {what}")
        if what == self._fails:
            raise OSError("no room")

    def start(self) -> None:
        self._note("start")

    def mark(self, phase: str) -> None:
        self._note(phase)

    def end_step(self, batches: Sequence[Batch]) -> None:
        self._note("step")

    def stop(self) -> None:
        self._note("stop")

    def result(self) -> Mapping[str, Any]:
        return {self.name: self.steps, "warnings": (f"of {self.name}",)}


def stopwatch_of(folder: Path, profile: ProfileWindow | None, steps: int = 3) -> WindowStopwatch:
    heartbeat = Heartbeat(folder / "beat")
    stages = [] if profile is None else [profile]
    return WindowStopwatch(HostClock(), heartbeat, warmup=2, steps=steps, stages=stages)


def drive(stopwatch: WindowStopwatch) -> int:
    stopwatch.start()
    laps = 0
    while stopwatch.running:
        stopwatch.mark("forward")
        stopwatch.lap([BATCH], 1.0)
        laps += 1
    return laps


def test_parts_take_their_steps_after_the_window_one_after_the_other(tmp_path: Path) -> None:
    calls: list[str] = []
    profile = ProfileWindow([Noting("one", 2, calls), Noting("two", 1, calls)], lambda: None)
    stopwatch = stopwatch_of(tmp_path, profile)
    assert drive(stopwatch) == 2 + 3 + 3
    assert len(stopwatch.window().samples) == 3, "the window is what it is without a profile"
    step = ["one forward", "one step"]
    assert calls == [
        *("one start", *step, *step, "one stop"),
        *("two start", "two forward", "two step", "two stop"),
    ]
    assert profile.fields() == {
        "steps": 0,
        "step_seconds": None,
        "one": 2,
        "two": 1,
        "warnings": ("of one", "of two"),
    }


@pytest.mark.parametrize("fails", ["start", "forward", "step", "stop"])
def test_a_part_that_fails_takes_its_steps_all_the_same_and_leaves_a_warning(
    fails: str, tmp_path: Path
) -> None:
    """Other ranks wait for this one in every step."""
    calls: list[str] = []
    parts = [Noting("one", 2, calls, fails), Noting("two", 1, calls)]
    profile = ProfileWindow(parts, lambda: None)
    assert drive(stopwatch_of(tmp_path, profile)) == 2 + 3 + 3
    assert profile.warnings.count("one: OSError: no room") == 1
    assert profile.fields()["two"] == 1
    assert calls.count("one stop") == 1
    assert calls.count(f"one {fails}") == 1, "what has failed is left alone"


def test_a_part_without_steps_ends_before_the_next_begins(tmp_path: Path) -> None:
    calls: list[str] = []
    parts = [Noting(*one, calls) for one in (("none", 0), ("one", 1), ("last", 0))]
    profile = ProfileWindow(parts, lambda: None)
    assert drive(stopwatch_of(tmp_path, profile)) == 2 + 3 + 1
    assert calls == [
        *("none start", "none stop"),
        *("one start", "one forward", "one step", "one stop"),
        *("last start", "last stop"),
    ]
    assert profile.fields()["last"] == 0


def test_what_is_not_requested_is_not_imported(
    make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory part builds on torch's private modules, which another torch may not have."""
    monkeypatch.setitem(sys.modules, "torch.profiler._memory_profiler", None)
    monkeypatch.delitem(sys.modules, "accel_bench_profile.recording.memory", raising=False)
    parts = parts_of(RecordingOptions(), make_run(), tmp_path)
    assert [one.name for one in parts] == ["scalars of steps", "torch's profiler"]
    with pytest.raises(ImportError):
        parts_of(RecordingOptions(memory=True), make_run(), tmp_path)


def test_a_step_that_raises_leaves_nothing_of_the_part_behind(tmp_path: Path) -> None:
    calls: list[str] = []
    profile = ProfileWindow([Noting("one", 2, calls)], lambda: None)
    profile.start()
    profile.stop()
    profile.stop()
    assert calls == ["one start", "one stop"]


def calls_in_window(folder: Path, profile: ProfileWindow | None) -> Counter[str]:
    """Every call of the stopwatch, in Python or C, while a window is open."""
    found: Counter[str] = Counter()
    stopwatch = stopwatch_of(folder, profile, steps=20)
    inner = stopwatch.after_window

    def note(frame: Any, event: str, argument: Any) -> None:
        ours = "accel_bench" in frame.f_code.co_filename  # and not what a collector finalizes
        if ours and event in ("call", "c_call"):
            name = frame.f_code.co_qualname if event == "call" else argument.__qualname__
            found[f"{event} {name}"] += 1

    def close(window: Any) -> None:
        sys.setprofile(None)
        inner(window)

    stopwatch.after_window = close
    stopwatch.before_window = lambda: sys.setprofile(note)
    gc.collect()  # Generators of other tests end with a call.
    try:
        drive(stopwatch)
    finally:
        sys.setprofile(None)
    return found


def test_a_profile_adds_no_call_to_the_timed_region(tmp_path: Path) -> None:
    profile = ProfileWindow([Noting("one", 2, [])], lambda: None)
    without = calls_in_window(tmp_path, None)
    assert without["call WindowStopwatch._window_lap"] == 20
    assert calls_in_window(tmp_path, profile) == without
