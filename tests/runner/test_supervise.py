"""Ranks are watched by their heartbeats and exits, and all end when one is lost or time is up."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from runner.job_factory import LineProcess, make_job, write_beat, write_rank

from accel_bench.job import HEARTBEAT_STEP
from accel_bench.result import Status
from accel_bench.runner import supervise as module
from accel_bench.runner.heartbeats import Progress, read_progress
from accel_bench.runner.outcome import judge
from accel_bench.runner.supervise import Supervisor, deferred_signals

ENDLESS = "import time; time.sleep(3600)"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for what must not happen takes less time."""
    monkeypatch.setenv("ACCEL_BENCH_GRACE_SECONDS", "0.5")
    monkeypatch.setattr(module, "DUMP_SECONDS", 0.0)


def test_the_parent_reads_what_a_worker_s_heartbeat_says(tmp_path: Path) -> None:
    from accel_bench.worker.heartbeat import Heartbeat

    job = make_job(tmp_path)
    assert read_progress(job, 0) is None
    heartbeat = Heartbeat(job.heartbeat_path(0))
    assert read_progress(job, 0) == Progress(0, "start")
    heartbeat.phase = "window"
    heartbeat.page[HEARTBEAT_STEP] = 12
    assert read_progress(job, 0) == Progress(12, "window")
    heartbeat.end_pass()
    assert read_progress(job, 0) == Progress(12, "window", passes=1)


def test_a_page_that_is_no_heartbeat_is_none(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.heartbeat_path(0).write_bytes(b"short")
    assert read_progress(job, 0) is None


def test_ranks_that_end_well_are_left_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    for rank in (0, 1):
        write_rank(job, rank)
        write_beat(job, rank, 5 + rank, "window")
    ranks = [LineProcess(rank, "pass") for rank in (0, 1)]
    progress: list[Progress] = []
    outcome = Supervisor(job, ranks, progress.append).run(60.0)
    assert outcome.exits == {0: 0, 1: 0}
    assert (outcome.first_failed, outcome.expired) == (None, "")
    assert progress[-1] == Progress(5, "window")
    assert [rank.asked for rank in ranks] == [["sweep"], ["sweep"]]


@pytest.mark.parametrize("status", [None, Status.OOM])
def test_a_lost_rank_takes_the_others_with_it(tmp_path: Path, status: Status | None) -> None:
    job = make_job(tmp_path, ranks=2)
    if status is not None:
        write_rank(job, 1, status)
    ranks = [LineProcess(0, ENDLESS), LineProcess(1, "pass")]
    outcome = Supervisor(job, ranks, lambda progress: None).run(60.0)
    assert outcome.first_failed == 1
    assert outcome.exits == {0: -15, 1: 0}
    assert ranks[0].asked == ["dump", "signal 15", "sweep"]


def test_a_deaf_rank_is_killed(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    line = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(tmp_path / 'up')!r}, 'w')"
    rank = LineProcess(0, f"{line}; {ENDLESS}")
    while not (tmp_path / "up").exists():
        rank.wait(0.05)
    outcome = Supervisor(job, [rank], lambda progress: None).run(0.2)
    assert outcome.exits == {0: -9}
    assert outcome.expired == "hung"
    assert rank.asked == ["dump", "signal 15", "signal 9", "sweep"]


def test_a_rank_that_would_fill_the_disk_is_terminated(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    with job.log_path(1).open("wb") as log:
        log.truncate(module.MOST_LOG_BYTES + 1)
    write_beat(job, 1, 3, "window")
    outcome = Supervisor(job, [LineProcess(n, ENDLESS) for n in (0, 1)], lambda _: None).run(60.0)
    assert (outcome.flooding, outcome.exits) == (1, {0: -15, 1: -15})
    verdict = judge(job, outcome, {})
    assert verdict.status is Status.FAILED
    assert verdict.reasons == (
        "rank 1 wrote more than 1 GiB to its output, and was in window; let it print less",
    )


def test_what_a_rank_did_before_it_was_ended_is_what_counts(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_beat(job, 0, 3, "window")

    class Closing(LineProcess):
        def signal(self, number: int) -> None:
            write_beat(job, 0, 3, "close_run")
            super().signal(number)

    outcome = Supervisor(job, [Closing(0, ENDLESS)], lambda progress: None).run(0.6)
    assert outcome.progress == {0: Progress(3, "window")}


def test_ctrl_c_while_watching_ends_the_ranks_and_is_raised_again(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_beat(job, 0, 1, "warm-up")
    rank = LineProcess(0, ENDLESS)

    def press(progress: Progress) -> None:
        raise KeyboardInterrupt

    supervisor = Supervisor(job, [rank], press)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run(60.0)
    assert rank.poll() is not None
    assert rank.asked == ["signal 15", "sweep"]


def test_a_session_that_ends_elsewhere_ends_the_ranks_as_ctrl_c_does(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    rank, stop = LineProcess(0, ENDLESS), threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        Supervisor(job, [rank], lambda progress: None, stop).run(60.0)
    assert rank.poll() is not None
    assert rank.asked == ["signal 15", "sweep"]


def test_a_rank_that_ends_on_the_last_moment_has_not_expired(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_rank(job, 0)
    rank = LineProcess(0, "pass")
    rank.wait(60.0)

    class Late(LineProcess):
        """Seems to run until it is waited for."""

        def __init__(self, inner: LineProcess) -> None:
            self.rank, self.asked, self._inner, self._waited = 0, [], inner, False

        def wait(self, seconds: float) -> None:
            self._waited = True

        def poll(self) -> int | None:
            return self._inner.poll() if self._waited else None

        def sweep(self) -> None:
            self._inner.sweep()

    outcome = Supervisor(job, [Late(rank)], lambda progress: None).run(0.0)
    assert outcome.expired == ""
    assert outcome.exits == {0: 0}


def test_a_rank_that_ends_between_two_looks_is_no_fault(tmp_path: Path) -> None:
    class Vanishing(LineProcess):
        """Runs at the first look and is gone at the second."""

        looks = 0

        def poll(self) -> int | None:
            self.looks += 1
            return None if self.looks == 1 else 0

    job = make_job(tmp_path)
    write_rank(job, 0)
    outcome = Supervisor(job, [Vanishing(0, "pass")], lambda progress: None).run(60.0)
    assert outcome.exits == {0: 0}


def test_a_rank_that_a_foreign_signal_ended_is_remembered(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    ranks = [
        LineProcess(0, ENDLESS),
        LineProcess(1, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    ]
    outcome = Supervisor(job, ranks, lambda progress: None).run(60.0)
    assert outcome.signalled == [1]
    assert outcome.exits[0] < 0


# Ctrl-C and SIGTERM while a result is kept.


def test_ctrl_c_in_the_block_is_delivered_after_it() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("kept")
    assert done == ["kept"]


def test_without_a_signal_nothing_happens_and_handlers_are_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with deferred_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_error_in_the_block_comes_through() -> None:
    with pytest.raises(ValueError, match="disk"), deferred_signals():
        raise ValueError("disk")


def test_in_another_thread_it_does_nothing() -> None:
    done: list[str] = []

    def work() -> None:
        with deferred_signals():
            done.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["done"]
