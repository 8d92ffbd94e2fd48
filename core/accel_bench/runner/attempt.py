"""Attempt of a run: its ranks are started and supervised, and one Result is made of it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accel_bench.analysis.checks.noise import device_reasons
from accel_bench.analysis.wording import count, size
from accel_bench.documents.canonical import whole_text
from accel_bench.documents.files import PRIVATE
from accel_bench.errors import AccelBenchError, HookError
from accel_bench.job import Job
from accel_bench.launcher import Allocation, RankProcess
from accel_bench.machine.caches import cache_folder
from accel_bench.machine.cgroup import MemoryGroup, read_memory_group
from accel_bench.machine.clock import monotonic
from accel_bench.machine.info import Machine
from accel_bench.machine.probe import read_settled_state, read_state
from accel_bench.machine.scheduling import ended_children
from accel_bench.machine.state import MachineState
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.loading import restored_environment
from accel_bench.result import Metric, Node, RankResult, Result, Status
from accel_bench.runner.artifacts import log_tail, redact_files
from accel_bench.runner.heartbeats import Progress, seen_windows
from accel_bench.runner.observers import Observation
from accel_bench.runner.outcome import AttemptVerdict, describe_exit, judge, read_ranks
from accel_bench.runner.supervise import ProcessOutcome, Supervisor, deferred_signals


@dataclass(frozen=True)
class Attempt:
    """Inputs of one attempt: the job that its ranks read, and values only for its `Result`."""

    job: Job
    session: str
    machine: Machine | None

    root: Path
    """Path of the results folder."""

    position: int = 0
    command: tuple[str, ...] = ()

    allocation: Allocation | None = None
    """Processes that the launcher keeps for the whole session."""

    stop: threading.Event | None = None
    """Event that ends the attempt as Ctrl-C does, for an attempt in a thread beside others."""


@dataclass
class Observations:
    """Record of an attempt: times, exit codes, results of ranks, metrics, machine states."""

    began: float
    """Start of the attempt by time.monotonic(), in seconds."""

    started_at: str
    """Start of the attempt: UTC, ISO 8601."""

    outcome: ProcessOutcome = field(default_factory=ProcessOutcome)
    ranks: dict[int, RankResult] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    nodes: tuple[Node, ...] = ()
    before: MachineState | None = None
    after: MachineState | None = None

    fault: AccelBenchError | None = None
    """Error that an observer raised."""


def make_attempt(
    root: Path, folder: Path, session: str, machine: Machine, **fields: Any
) -> Attempt:
    """Return an attempt with a new id whose files lie in `folder`, inside the results folder
    `root`. `fields` are further fields of its `Job`, such as its experiment and purpose;
    `cache_folder` among them replaces this user's cache folder."""
    if "cache_folder" not in fields:
        fields["cache_folder"] = str(cache_folder())
    run_id = f"{session}-{secrets.token_hex(4)}"
    job = Job(run_id=run_id, folder=str(folder), **fields)
    return Attempt(job, session, machine, root)


@ended_children()
@restored_environment()
def run_attempt(
    attempt: Attempt,
    active: ActivePlugins,
    on_progress: Callable[[Progress], None],
    keep: Callable[[Result], Result],
) -> Result:
    """Run the attempt to its end; return the value of `keep`, a function that stores the result.

    Ctrl-C, and other signals that count as Ctrl-C, terminate the ranks and are raised again once
    the result is stored.
    """
    job = attempt.job
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    observed = Observations(monotonic(), now)
    verdict: AttemptVerdict | None = None
    interruption: KeyboardInterrupt | None = None
    observation = Observation(job, active)

    def with_live(progress: Progress) -> None:
        on_progress(replace(progress, live=observation.live()))

    group = read_memory_group()
    try:
        _run_ranks(attempt, active, observed, with_live, observation.start)
    except KeyboardInterrupt as stop:
        interruption = stop
        verdict = AttemptVerdict(Status.INTERRUPTED, ("stopped by the user",))
    except (OSError, AccelBenchError) as error:
        verdict = _not_run(error)
    with deferred_signals():
        observed.outcome.out_of_memory = _out_of_memory(group)
        observed.ranks = read_ranks(job)
        verdict = verdict or _removed(job)
        verdict = verdict or judge(job, observed.outcome, observed.ranks, active)
        hurried = interruption is not None
        observed.metrics, observed.fault = observation.finish(observed.ranks, hurried)
        # Who pressed Ctrl-C does not wait for a driver.
        observed.after = None if hurried else read_settled_state(observed.before, _on_gpu(job))
        redact_files(job)
        result = keep(_result(attempt, active, _with_observations(verdict, observed), observed))
    if interruption is not None:
        raise interruption
    return result


def _on_gpu(job: Job) -> bool:
    return job.experiment.scenario.resources.device != "cpu"


def _run_ranks(
    attempt: Attempt,
    active: ActivePlugins,
    observed: Observations,
    on_progress: Callable[[Progress], None],
    on_start: Callable[[Sequence[RankProcess]], None],
) -> None:
    """Start the ranks, pass them to `on_start`, and supervise them until all have ended."""
    job = attempt.job
    observed.before = read_state(_on_gpu(job))
    for path in (job.path(), *map(job.log_path, range(job.world_size))):
        path.touch(mode=PRIVATE)
    job.path().write_text(job.model_dump_json(indent=1), encoding="utf8")
    ranks = _start(attempt, active)
    observed.nodes = tuple(filter(None, (getattr(rank, "node", None) for rank in ranks)))
    supervisor = Supervisor(job, ranks, on_progress, attempt.stop)
    observed.outcome = supervisor.outcome
    limit = job.experiment.scenario.measure.timeout_seconds
    supervisor.run(limit, lambda: on_start(ranks))


def _start(attempt: Attempt, active: ActivePlugins) -> Sequence[RankProcess]:
    """Start the ranks; return their processes. Raises HookError unless each rank has one."""
    job, allocation = attempt.job, attempt.allocation

    def are_all(ranks: Any) -> bool:
        handles = ranks if isinstance(ranks, list | tuple) else ()
        return [getattr(rank, "rank", None) for rank in handles] == list(range(job.world_size))

    expected = f"the processes of {count(job.world_size, 'rank')}"
    ranks: Sequence[RankProcess] = active.require(
        "launch_ranks", expected, are_all, job=job, allocation=allocation
    )
    return ranks


def _not_run(error: OSError | AccelBenchError) -> AttemptVerdict:
    """Return the status and reason of an attempt whose ranks could not be started."""
    if isinstance(error, HookError) and not isinstance(error.__cause__, OSError):
        return AttemptVerdict(Status.PLUGIN_ERROR, (str(error),))
    return AttemptVerdict(Status.INFRA_ERROR, (f"the ranks could not be run: {error}",))


def _out_of_memory(before: MemoryGroup | None) -> str:
    """Return as text the memory limit at which the kernel has killed processes since `before`;
    empty if it has killed none."""
    after = read_memory_group()
    if before is None or after is None or after.kills <= before.kills:
        return ""
    if after.limit_bytes is None:
        return "the size of this machine"
    return f"the limit of its control group, {size(after.limit_bytes)}"


def _removed(job: Job) -> AttemptVerdict | None:
    """Return the verdict on an attempt if its folder was removed while it ran, else None."""
    if Path(job.folder).is_dir():
        return None
    reason = f"{job.folder} was removed while it ran; leave a session's folders until it has ended"
    return AttemptVerdict(Status.INFRA_ERROR, (reason,))


def _with_observations(verdict: AttemptVerdict, observed: Observations) -> AttemptVerdict:
    """Return `verdict`, or a worse one if observers failed or metrics degrade a completed run."""
    if not verdict.status.completed:
        return verdict
    if observed.fault is not None:
        return AttemptVerdict(Status.PLUGIN_ERROR, (str(observed.fault),))
    ranks = observed.ranks.values()
    metrics = [*(metric for rank in ranks for metric in rank.metrics), *observed.metrics]
    reasons = [metric.reason for metric in metrics if metric.degrades and metric.reason]
    reasons += device_reasons(observed.before, observed.after, ranks)
    if not reasons:
        return verdict
    return AttemptVerdict(Status.DEGRADED, tuple(dict.fromkeys([*verdict.reasons, *reasons])))


def _result(
    attempt: Attempt, active: ActivePlugins, verdict: AttemptVerdict, observed: Observations
) -> Result:
    job = attempt.job
    exits = observed.outcome.exits
    return Result(
        run_id=job.run_id,
        session=attempt.session,
        experiment=job.experiment,
        round=job.round,
        position=attempt.position,
        attempt=job.attempt,
        status=verdict.status,
        reasons=tuple(map(whole_text, verdict.reasons)),
        phase=verdict.phase,
        started_at=observed.started_at,
        seconds=monotonic() - observed.began,
        ranks=tuple(observed.ranks[rank] for rank in sorted(observed.ranks)),
        seen_windows=seen_windows(job, observed.outcome.sightings, observed.ranks),
        exits=tuple(describe_exit(exits.get(rank)) for rank in range(job.world_size)),
        plugins=active.versions(),
        loss_tolerances=active.loss_tolerances,
        update_tolerances=active.update_tolerances,
        other_optimizers=active.other_optimizers,
        output_tolerances=active.output_tolerances,
        metrics=observed.metrics,
        machine=attempt.machine,
        nodes=observed.nodes,
        state_before=observed.before,
        state_after=observed.after,
        command=attempt.command,
        folder=str(Path(job.folder).relative_to(attempt.root)),
        log_tail="" if verdict.status.completed else log_tail(job.log_path(verdict.failed_rank)),
    )
