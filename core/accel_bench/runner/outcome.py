"""Status and reasons of an attempt, derived from how its ranks have ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from accel_bench.analysis.wording import count
from accel_bench.job import STEP_PHASES, WRITES_RESULT, Job
from accel_bench.plugins.active import ActivePlugins
from accel_bench.result import RankResult, Status
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.supervise import MOST_LOG_BYTES, ProcessOutcome, read_rank

CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""Signals that a process raises by its own fault, such as SIGSEGV."""


@dataclass(frozen=True)
class AttemptVerdict:
    """Status of one attempt and its reasons, with the phase and the rank of a failure."""

    status: Status
    reasons: tuple[str, ...] = ()
    phase: str = ""
    failed_rank: int = 0


def read_ranks(job: Job) -> dict[int, RankResult]:
    """Return the results of the ranks that wrote a complete result, by rank."""
    results = {rank: read_rank(job, rank) for rank in range(job.world_size)}
    return {rank: result for rank, result in results.items() if result is not None}


def judge(
    job: Job,
    outcome: ProcessOutcome,
    ranks: Mapping[int, RankResult],
    active: ActivePlugins | None = None,
) -> AttemptVerdict:
    """Return the status and reasons of an attempt, from time limits, result files, exit codes and
    heartbeats. `active` gives the name of a plugin whose hook never returned."""
    if outcome.expired:
        return _expired(job, outcome, active)
    if outcome.flooding is not None:
        return _flooding(outcome.flooding, outcome, active)
    if outcome.lost:
        return _lost(outcome, active)
    failed = _failed_rank(job, outcome, ranks)
    if failed is not None:
        return _judge_rank(job, failed, outcome, ranks, active)
    if forged := tuple(forgeries(job, outcome, ranks)):
        return AttemptVerdict(Status.INVALID, forged)
    reasons = [reason for rank in ranks.values() for reason in rank.reasons]
    for rank, code in sorted(outcome.exits.items()):
        if code != 0:
            reasons.append(
                f"rank {rank} ended by {describe_exit(code)} after its result was written"
            )
    status = Status.DEGRADED if reasons else Status.OK
    return AttemptVerdict(status, tuple(dict.fromkeys(reasons)))


def forgeries(job: Job, outcome: ProcessOutcome, ranks: Mapping[int, RankResult]) -> Iterator[str]:
    """Yield a text for each contradiction by which a rank's result file is known to be forged.

    The heartbeat gets each counted step, and the last phase before the result is written. The
    heartbeats of several nodes are not compared, since they may lag.
    """
    far = job.experiment.scenario.resources.nodes > 1
    for rank, result in sorted(ranks.items()):
        beat, steps = outcome.progress.get(rank), steps_of(result)
        if result.rank != rank:
            yield f"forged: rank{rank}.json is the result of rank {result.rank}"
        elif far:
            continue
        elif beat is None:
            if steps:
                yield f"forged: rank{rank}.json counts {steps:,} steps, and no heartbeat was seen"
        elif beat.phase != WRITES_RESULT:
            yield (
                f"forged: rank{rank}.json says that its rank completed, and the heartbeat ended in "
                f"{beat.phase} after {beat.step:,} steps"
            )
        elif steps is not None and beat.step != steps:
            yield (
                f"forged: rank{rank}.json counts {steps:,} steps, and the heartbeat {beat.step:,}"
            )


def steps_of(result: RankResult) -> int | None:
    """Return the number of all steps that a rank's result states, or None if it has no window."""
    if result.window is None or not result.window.samples:
        return None
    after = sum(part.steps for part in (result.phases, result.communication) if part)
    after += result.checked_steps + result.profiled_steps + result.observed_steps
    after += len(result.steps_after)
    after += len(result.learning.steps) if result.learning else 0
    return result.window.samples[-1].step + 1 + after


def describe_exit(code: int | None) -> str:
    """Return an exit code as text, such as `exit 3` or `SIGKILL`; `unknown` for None."""
    if code is None:
        return "unknown"
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _interruption(result: RankResult) -> str:
    """Return a text on what interrupted a rank: `SIGTERM from outside` or `a KeyboardInterrupt`."""
    name = result.error.message if result.error else ""
    return f"{name} from outside" if name in signal.Signals.__members__ else "a KeyboardInterrupt"


def _where(progress: Progress, active: ActivePlugins | None) -> str:
    """Return a rank's phase as text, with the plugin whose code runs if it is not the engine."""
    plugins = active.plugins if active else ()
    if active is None or not 0 < progress.plugin <= len(plugins):
        return progress.phase
    plugin = plugins[progress.plugin - 1]
    if progress.phase in STEP_PHASES and plugin is active.answers("build_engine"):
        return progress.phase
    return f"{progress.phase} of plugin {plugin.name!r} ({plugin.distribution})"


def _reached(progress: Progress, active: ActivePlugins | None) -> str:
    """Return a rank's progress as text: `in warm-up after 1 step`."""
    return f"in {_where(progress, active)} after {count(progress.step, 'step')}"


def _expired(job: Job, outcome: ProcessOutcome, active: ActivePlugins | None) -> AttemptVerdict:
    """Return the verdict on an attempt that reached its time limit; it names the slowest rank."""
    rank = outcome.slowest or 0
    progress = outcome.reached(rank)
    limit = job.experiment.scenario.measure.timeout_seconds
    # Ranks that wait for one another stand at the same step: then none of them is to blame alone.
    who = "the run" if outcome.slowest is None or job.world_size == 1 else f"rank {rank}"
    what = "stood still" if outcome.expired == "hung" else "was still busy"
    where = f"{_reached(progress, active)} at the limit of {limit:g} s"
    reason = f"{who} {what} {where}; if it needs longer, raise --timeout"
    return AttemptVerdict(Status(outcome.expired), (reason,), progress.phase, rank)


def _flooding(rank: int, outcome: ProcessOutcome, active: ActivePlugins | None) -> AttemptVerdict:
    """Return the verdict on an attempt whose `rank` was terminated for a log that is too long."""
    progress = outcome.reached(rank)
    reason = (
        f"rank {rank} wrote more than {MOST_LOG_BYTES / 2**30:g} GiB to its output, and was in "
        f"{_where(progress, active)}; let it print less"
    )
    return AttemptVerdict(Status.FAILED, (reason,), progress.phase, rank)


def _lost(outcome: ProcessOutcome, active: ActivePlugins | None) -> AttemptVerdict:
    """Return the verdict on an attempt with ranks that the launcher can no longer observe."""
    reasons = []
    for rank, reason in sorted(outcome.lost.items()):
        reasons.append(f"rank {rank}: {reason}, {_reached(outcome.reached(rank), active)}")
    first = min(outcome.lost)
    return AttemptVerdict(Status.FAILED, tuple(reasons), outcome.reached(first).phase, first)


def _failed_rank(job: Job, outcome: ProcessOutcome, ranks: Mapping[int, RankResult]) -> int | None:
    """Return the rank that caused the failure, preferably one that states a reason; None if no rank
    failed. A rank terminated by a signal states none, and its end makes other ranks fail."""
    missing = [rank for rank in range(job.world_size) if rank not in ranks]
    failed = [rank for rank, result in ranks.items() if not result.status.completed]
    explained = [rank for rank in failed if ranks[rank].status is not Status.INTERRUPTED]
    certain = [rank for rank in explained if ranks[rank].status is not Status.FAILED]
    signalled = [rank for rank in outcome.signalled if rank in missing]
    if outcome.first_failed in missing and not explained:
        return outcome.first_failed
    return next(iter([*certain, *signalled, *explained, *missing, *failed]), None)


def _judge_rank(
    job: Job,
    rank: int,
    outcome: ProcessOutcome,
    ranks: Mapping[int, RankResult],
    active: ActivePlugins | None,
) -> AttemptVerdict:
    """Return the verdict on an attempt by its failed `rank`'s result, else by the exit code."""
    prefix = f"rank {rank}: " if job.world_size > 1 else ""
    if rank in ranks:
        result = ranks[rank]
        if result.status is Status.INTERRUPTED:
            # Ctrl-C is handled by the parent: another process terminated this rank.
            reason = f"{prefix}ended by {_interruption(result)} in {result.phase}"
            return AttemptVerdict(Status.KILLED, (reason,), result.phase, rank)
        reasons = tuple(f"{prefix}{reason}" for reason in result.reasons)
        return AttemptVerdict(result.status, reasons, result.phase, rank)
    progress = outcome.reached(rank)
    code = outcome.exits.get(rank)
    end = describe_exit(code)
    status = Status.FAILED
    if end in CRASHES:
        status = Status.CRASHED
    elif code is not None and code < 0:
        status = Status.KILLED
    where = _reached(progress, active)
    reason = f"{prefix}ended by {end} {where}, without a result"
    if end == "SIGKILL" and outcome.out_of_memory:
        status = Status.OOM
        reason += f": the kernel killed it for memory at {outcome.out_of_memory}"
    return AttemptVerdict(status, (reason,), progress.phase, rank)
