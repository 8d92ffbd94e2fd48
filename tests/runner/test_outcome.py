"""How ranks ended becomes one status with its reasons: result files first, then exit codes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from runner.job_factory import make_job, write_rank

from accel_bench import Options, Plugin, hookimpl
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.result import PhaseSplit, RankResult, Sample, Status, Window
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.outcome import describe_exit, judge, read_ranks
from accel_bench.runner.supervise import ProcessOutcome
from accel_bench.worker.failure import failure_of


def test_results_that_are_missing_or_cut_short_count_as_not_written(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=3)
    write_rank(job, 0)
    write_rank(job, 1)
    whole = job.result_path(1).read_text(encoding="utf8")
    job.result_path(1).write_text(whole[:-5], encoding="utf8")
    assert list(read_ranks(job)) == [0]


def test_sound_ranks_are_ok(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    write_rank(job, 0)
    write_rank(job, 1)
    assert judge(job, ProcessOutcome(exits={0: 0, 1: 0}), read_ranks(job)).status is Status.OK


def test_a_degraded_rank_degrades_the_run_and_says_why_once(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    for rank in (0, 1):
        write_rank(job, rank, Status.DEGRADED, "the clocks were throttled")
    verdict = judge(job, ProcessOutcome(exits={0: 0, 1: 0}), read_ranks(job))
    assert verdict.status is Status.DEGRADED
    assert verdict.reasons == ("the clocks were throttled",)


def test_a_crash_after_the_result_was_written_is_told(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_rank(job, 0)
    verdict = judge(job, ProcessOutcome(exits={0: -signal.SIGSEGV}), read_ranks(job))
    assert verdict.status is Status.DEGRADED
    assert verdict.reasons == ("rank 0 ended by SIGSEGV after its result was written",)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (3, Status.FAILED),
        (0, Status.FAILED),
        (-signal.SIGABRT, Status.CRASHED),
        (-signal.SIGBUS, Status.CRASHED),
        (-signal.SIGKILL, Status.KILLED),
        (-signal.SIGTERM, Status.KILLED),
    ],
)
def test_without_a_result_the_exit_speaks(tmp_path: Path, code: int, status: Status) -> None:
    job = make_job(tmp_path)
    outcome = ProcessOutcome(exits={0: code}, progress={0: Progress(7, "window")}, first_failed=0)
    verdict = judge(job, outcome, {})
    assert verdict.status is status
    assert verdict.phase == "window"
    words = f"ended by {describe_exit(code)} in window after 7 steps, without a result"
    assert verdict.reasons == (words,)


@pytest.mark.parametrize(
    ("code", "status"), [(-signal.SIGKILL, Status.OOM), (-signal.SIGSEGV, Status.CRASHED)]
)
def test_a_kill_while_the_kernel_killed_for_memory_is_oom(
    tmp_path: Path, code: int, status: Status
) -> None:
    limit = "the limit of its control group, 2.00 GiB"
    outcome = ProcessOutcome(exits={0: code}, first_failed=0, out_of_memory=limit)
    verdict = judge(make_job(tmp_path), outcome, {})
    assert verdict.status is status
    assert (f"the kernel killed it for memory at {limit}" in verdict.reasons[0]) == (
        status is Status.OOM
    )


def test_the_rank_that_says_why_comes_before_one_that_was_dragged_along(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=3)
    write_rank(job, 1, Status.INTERRUPTED, "KeyboardInterrupt: signal 15")
    write_rank(job, 2, Status.OOM, "OutOfMemoryError: full")
    outcome = ProcessOutcome(exits={0: -signal.SIGKILL, 1: 0, 2: 0}, first_failed=0)
    verdict = judge(job, outcome, read_ranks(job))
    assert verdict.status is Status.OOM
    assert verdict.reasons == ("rank 2: OutOfMemoryError: full",)
    assert verdict.failed_rank == 2


def test_the_first_lost_rank_comes_before_those_that_were_ended_for_it(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    write_rank(job, 0, Status.INTERRUPTED, "KeyboardInterrupt: signal 15")
    outcome = ProcessOutcome(exits={0: 0, 1: -signal.SIGKILL}, first_failed=1)
    verdict = judge(job, outcome, read_ranks(job))
    assert verdict.status is Status.KILLED
    assert verdict.reasons[0].startswith("rank 1: ended by SIGKILL")


def test_at_the_limit_the_slowest_rank_is_named(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2, seconds=90.0)
    outcome = ProcessOutcome(
        progress={0: Progress(9, "window"), 1: Progress(4, "window")}, expired="hung", slowest=1
    )
    verdict = judge(job, outcome, {})
    assert verdict.status is Status.HUNG
    stood_still = "rank 1 stood still in window after 4 steps at the limit of 90 s"
    assert verdict.reasons == (f"{stood_still}; if it needs longer, raise --timeout",)


def test_exits_have_names() -> None:
    assert [describe_exit(code) for code in (None, 0, 3, -9, -200)] == [
        "unknown",
        "exit 0",
        "exit 3",
        "SIGKILL",
        "signal 200",
    ]


def test_a_rank_that_a_signal_ended_comes_before_those_that_failed_for_want_of_it(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path, ranks=2)
    write_rank(job, 0, Status.FAILED, "RuntimeError: Connection reset by peer")
    outcome = ProcessOutcome(exits={0: 0, 1: -signal.SIGKILL}, signalled=[1], first_failed=0)
    verdict = judge(job, outcome, read_ranks(job))
    assert (verdict.status, verdict.failed_rank) == (Status.KILLED, 1)


def test_a_rank_that_knows_what_went_wrong_comes_before_one_that_a_signal_ended(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path, ranks=2)
    write_rank(job, 0, Status.OOM, "out of memory")
    outcome = ProcessOutcome(exits={0: 0, 1: -signal.SIGABRT}, signalled=[1], first_failed=0)
    assert judge(job, outcome, read_ranks(job)).status is Status.OOM


@pytest.mark.parametrize(
    ("raised", "end"),
    [
        ("SIGTERM", "SIGTERM from outside"),
        ("SIGINT", "SIGINT from outside"),
        ("", "a KeyboardInterrupt"),  # of a plugin
    ],
)
def test_a_signal_from_outside_is_named_and_not_called_an_interruption(
    tmp_path: Path, raised: str, end: str
) -> None:
    error = failure_of(KeyboardInterrupt(raised))
    rank = RankResult(rank=0, status=Status.INTERRUPTED, phase="window", error=error)
    outcome = ProcessOutcome(exits={0: 0}, first_failed=0)
    verdict = judge(make_job(tmp_path), outcome, {0: rank})
    assert verdict.status is Status.KILLED
    assert verdict.reasons == (f"ended by {end} in window",)


def test_ranks_that_wait_for_one_another_are_blamed_together(tmp_path: Path) -> None:
    job = make_job(tmp_path, ranks=2)
    progress = {0: Progress(3, "window"), 1: Progress(3, "window")}
    verdict = judge(job, ProcessOutcome(progress=progress, expired="hung"), {})
    assert verdict.reasons[0].startswith("the run stood still in window after 3 steps")


def measured(steps: int = 6, split: int = 0, rank: int = 0) -> RankResult:
    """A rank that completed after so many steps, and some that were split."""
    counts = {"sequences": 1, "processed_tokens": 1, "real_tokens": 1, "supervised_tokens": 1}
    samples = [Sample(step=i, seconds=1.0, loss=1.0, **counts) for i in range(steps)]
    window = Window(started=0, ended=1, warmup=tuple(samples[:2]), samples=tuple(samples[2:]))
    phases = PhaseSplit(steps=split, step_seconds=1, seconds={}) if split else None
    return RankResult(rank=rank, status=Status.OK, window=window, phases=phases)


@pytest.mark.parametrize("result", [measured(6), measured(4, split=2)])
def test_a_result_that_agrees_with_its_heartbeat_is_sound(
    tmp_path: Path, result: RankResult
) -> None:
    outcome = ProcessOutcome(exits={0: 0}, progress={0: Progress(6, "write_result")})
    assert judge(make_job(tmp_path), outcome, {0: result}).status is Status.OK


@pytest.mark.parametrize(
    ("result", "progress", "reason"),
    [
        (
            measured(),
            {0: Progress(6, "finish_metrics")},
            "rank0.json says that its rank completed, and the heartbeat ended in finish_metrics "
            "after 6 steps",
        ),
        (
            RankResult(rank=0, status=Status.OK),
            {0: Progress(3, "close_run")},
            "rank0.json says that its rank completed, and the heartbeat ended in close_run after "
            "3 steps",
        ),
        (
            measured(60),
            {0: Progress(6, "write_result")},
            "rank0.json counts 60 steps, and the heartbeat 6",
        ),
        (
            measured(6),
            {0: Progress(8, "write_result")},
            "rank0.json counts 6 steps, and the heartbeat 8",
        ),
        (measured(), {}, "rank0.json counts 6 steps, and no heartbeat was seen"),
        (
            measured(rank=1),
            {0: Progress(6, "write_result")},
            "rank0.json is the result of rank 1",
        ),
    ],
)
def test_a_result_that_core_did_not_write_is_invalid(
    tmp_path: Path, result: RankResult, progress: dict[int, Progress], reason: str
) -> None:
    outcome = ProcessOutcome(exits={0: 0}, progress=progress)
    verdict = judge(make_job(tmp_path), outcome, {0: result})
    assert (verdict.status, verdict.reasons) == (Status.INVALID, (f"forged: {reason}",))


def test_a_heartbeat_of_another_node_may_lag(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    scenario = job.experiment.scenario
    resources = scenario.resources.model_copy(update={"nodes": 2, "devices": 1})
    scenario = scenario.model_copy(update={"resources": resources})
    experiment = job.experiment.model_copy(update={"scenario": scenario})
    job = job.model_copy(update={"experiment": experiment})
    outcome = ProcessOutcome(exits={0: 0, 1: 0}, progress={0: Progress(5, "window")})
    assert judge(job, outcome, {0: measured(), 1: measured(rank=1)}).status is Status.OK


class Hanging(Plugin[Options]):
    """Has a hook in which it could hang."""

    @hookimpl
    def load_model(self, run: Any) -> Any:
        return None

    @hookimpl
    def build_engine(self, run: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("load_model", "stood still in load_model of plugin 'mine' (tests) after 0 steps"),
        ("window", "stood still in window after 0 steps"),
    ],
)
def test_a_hook_that_hangs_names_its_plugin_and_a_step_does_not_blame_the_engine(
    tmp_path: Path, phase: str, words: str
) -> None:
    active = ActivePlugins([ActivePlugin(Hanging(Options(), "mine"), "mine", None, "tests")])
    outcome = ProcessOutcome(progress={0: Progress(0, phase, 1)}, expired="hung", slowest=0)
    assert words in judge(make_job(tmp_path), outcome, {}, active).reasons[0]
