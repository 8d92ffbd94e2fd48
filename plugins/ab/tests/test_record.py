"""Reading what the observer left behind, and where the measured window of a command begins."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accel_bench_ab.outcome import (
    KILLED,
    SMALL,
    Finished,
    _failures,
    _metrics,
    effective_of,
    update_of,
)
from accel_bench_ab.plugin import CommandOptions
from accel_bench_ab.rank import Running
from accel_bench_ab.record import ROW, Observed, ProcessRecord, Step, observe, read_steps
from accel_bench_ab.window import (
    settled_after,
    step_seconds,
    steps_to_leave_out,
    warmup_of,
    window_of,
)

FACTS = {"began": 0, "rank": 0, "world_size": 1, "backward_passes": 3} | dict.fromkeys(
    ("steps_unseen", "tokens_unseen", "loss_unseen"), ""
)


def leave(folder: Path, name: str, steps: int, **facts: Any) -> None:
    """Write the record of a process whose steps took a second each."""
    rows = [ROW.pack((i + 1) * 10**9, 8, 6, 5, 1.0 / (i + 1), 1, 1) for i in range(steps)]
    (folder / f"{name}.steps").write_bytes(b"".join(rows) + bytes(ROW.size * 4))
    (folder / f"{name}.json").write_text(json.dumps({**FACTS, **facts}))


def test_steps_end_where_the_first_row_is_empty(tmp_path: Path) -> None:
    leave(tmp_path, "1", 3)
    steps = read_steps(tmp_path / "1.steps")
    assert steps[0] == Step(1.0, 8, 6, 5, 1.0, 1)
    assert len(steps) == 3


def test_ranks_of_one_job_are_one_run(tmp_path: Path) -> None:
    leave(tmp_path, "1", 3, rank=1, world_size=2)
    leave(tmp_path, "2", 4, rank=0, world_size=2)
    found = observe(tmp_path)
    assert [rank.facts["rank"] for rank in found.ranks] == [0, 1]
    assert found.steps[0] == Step(1.0, 16, 12, 10, 1.0, 2)
    assert len(found.steps) == 3


@pytest.mark.parametrize(
    ("processes", "reason"),
    [
        ([], "no process of it loaded torch"),
        ([{"steps": 2}, {"steps": 2}], "took optimizer steps are not the ranks of one job"),
        ([{"steps": 2, "world_size": 2}], "RANK 0 of WORLD_SIZE 2"),
        ([{"steps": 0}], "3 backward passes and no step of an optimizer of torch"),
        ([{"steps": 2, "steps_unseen": "optimizers take turns"}], "optimizers take turns"),
    ],
)
def test_steps_that_are_not_seen_have_a_reason(
    processes: list[dict[str, Any]], reason: str, tmp_path: Path
) -> None:
    for number, facts in enumerate(processes):
        leave(tmp_path, str(number), **facts)
    found = observe(tmp_path)
    assert not found.steps
    assert reason in found.unseen["steps"]


def test_weights_that_are_not_finite_have_no_update(tmp_path: Path) -> None:
    tensor = {"elements": 2, "dtype": "float32", "change": [0.5, math.nan]}
    leave(tmp_path, "1", 3, update_unseen="", updates={"2": {"weight": tensor}})
    found = observe(tmp_path)
    assert found.unseen == {"update": "the weights are not finite"}
    assert update_of(found, ended=False) is None


def test_a_command_may_have_another_python_and_torch_than_accel_bench() -> None:
    """The audit compares those that a worker reports with accel-bench's own."""
    facts = {"python": "3.9.1", "torch": "1.0", "updates": {}, "optimizer": "SGD", "steps": 1}
    names = ("learning_rates", "weight_decays", "hyperparameters", "state_dtypes")
    facts |= {name: {} for name in names}
    known = effective_of(finished(**facts).observed)
    assert (known.python, known.torch, known.optimizer) == (None, None, "SGD")


def test_tokens_of_some_steps_alone_are_not_seen(tmp_path: Path) -> None:
    leave(tmp_path, "1", 3, tokens_unseen="no DataLoader of torch was read")
    assert observe(tmp_path).unseen == {"tokens": "no DataLoader of torch was read"}


def steps_of(seconds: list[float], tokens: int = 8) -> list[Step]:
    """Return steps of so many seconds each, the first of which begins at 0."""
    ends = [sum(seconds[: i + 1]) for i in range(len(seconds))]
    return [Step(end, tokens, tokens, tokens, math.nan, 1) for end in ends]


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    assert step_seconds(steps_of([5.0, 1.0, 2.0]), 0.0) == [5.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("seconds", "warmup"),
    [
        ([9.0] + [1.0] * 19, 10),
        ([9.0] * 7 + [1.0] * 30, 15),  # Both medians of five need three steps of the new pace.
        ([2.0, 1.0] * 4, None),
        ([float(100 - i) for i in range(60)], 30),
    ],
)
def test_a_warmup_ends_at_a_plateau(seconds: list[float], warmup: int | None) -> None:
    assert warmup_of(steps_of(seconds), 0.0) == warmup


def test_a_plateau_before_the_caches_are_full_is_no_end_of_the_warmup() -> None:
    slow_epoch = [3.0] * 14 + [1.0] * 46
    assert warmup_of(steps_of(slow_epoch), 0.0) == 10
    assert settled_after(slow_epoch, 10) == 17


def test_a_window_leaves_at_most_half_of_the_steps_out() -> None:
    window = window_of(steps_of([1.0] * 8), 0.0, None, 0, counted=True)
    assert window is not None
    assert (len(window.warmup), len(window.samples)) == (4, 4)
    assert window.seconds == 4.0
    assert window.samples[0].loss is None


def test_a_window_ends_after_the_steps_that_were_asked() -> None:
    window = window_of(steps_of([1.0] * 60), 0.0, 12, 20, counted=False)
    assert window is not None
    assert (len(window.warmup), len(window.samples)) == (12, 20)
    assert {one.real_tokens for one in window.samples} == {1}


def test_few_measured_steps_are_not_taken_from_the_warmup() -> None:
    steps = steps_of([9.0] + [1.0] * 14)
    assert steps_to_leave_out(steps, 0.0) == 10
    window = window_of(steps, 0.0, None, 5, counted=True)
    assert window is not None
    assert (len(window.warmup), len(window.samples)) == (10, 5)


def test_the_warmup_that_is_waited_for_is_that_of_the_window() -> None:
    """The pace is steady after 10 steps and three times as fast after 17."""
    steps = steps_of([3.0] * 14 + [1.0] * 30)
    window = window_of(steps, 0.0, None, 20, counted=True)
    assert window is not None
    assert len(window.warmup) == steps_to_leave_out(steps, 0.0) == 17


def finished(code: int = 0, **facts: Any) -> Finished:
    """A command with the facts of one rank."""
    ranks = [ProcessRecord({**FACTS, **facts})]
    return Finished(code, "", 0.0, 1.0, 300, False, Path("/dev/null"), Observed(ranks))


@pytest.mark.parametrize(("ended", "peak"), [(True, 200), (False, 300)])
def test_a_killed_process_has_the_kernels_peak_of_memory(ended: bool, peak: int) -> None:
    found = {
        m.name: m for m in _metrics(CommandOptions(), finished(peak_rss_bytes=200, ended=ended))
    }
    assert found["peak_memory_bytes"].value == peak


def test_a_peak_that_is_that_of_accel_bench_is_none() -> None:
    small = replace(finished(peak_rss_bytes=None), peak_bytes=0)
    found = {metric.name: metric for metric in _metrics(CommandOptions(), small)}
    assert (found["peak_rss_bytes"].value, found["peak_rss_bytes"].reason) == (None, SMALL)


def test_a_killed_process_has_no_peak_of_its_allocator() -> None:
    """What it wrote last is that of an early step."""
    facts = {"peak_allocated_bytes": 5, "peak_reserved_bytes": 6, "peak_rss_bytes": 200}
    for ended, value in ((True, 5), (False, None)):
        known = {m.name: m for m in _metrics(CommandOptions(), finished(ended=ended, **facts))}
        assert known["peak_memory_bytes"].value == value
    assert known["peak_memory_bytes"].reason == KILLED


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "SIGKILL"), (-40, "signal 40"), (3, "exit code 3")]
)
def test_every_way_to_end_has_words(code: int, words: str) -> None:
    assert next(_failures(finished(code))).endswith(words)


def test_a_group_ends_after_its_leader() -> None:
    """As torchrun and shells end before what they have started."""
    running = Running.__new__(Running)
    words = ["sh", "-c", "sleep 600 & exit 0"]
    running.process = subprocess.Popen(words, start_new_session=True)
    assert not running._group_ended(0.0) or not running._ended(60.0)
    assert running._ended(60.0)
    assert not running._group_ended(0.0)
    os.killpg(running.process.pid, signal.SIGKILL)
    assert running._group_ended(60.0)


def test_nothing_is_unseen_of_a_whole_record() -> None:
    assert Observed(steps=steps_of([1.0])).unseen == {}
