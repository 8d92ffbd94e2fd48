"""One attempt of one run: start its ranks, watch them, and come back with one Result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from accel_bench.errors import AccelBenchError, HookError
from accel_bench.job import Job
from accel_bench.launch.endings import Verdict, describe_exit, judge, read_ranks
from accel_bench.launch.signals import undisturbed
from accel_bench.launch.watch import Beat, Ending, Watch
from accel_bench.plugins import Active, wrong_answer
from accel_bench.ranks import RankProcess
from accel_bench.redaction import Redactor
from accel_bench.result import RankResult, Result, Status

LOG_TAIL_BYTES = 64 * 1024
"""How much of a failed rank's log goes into the result."""


@dataclass(frozen=True)
class Attempt:
    """What is the same for all attempts of a run, and where this one lies."""

    job: Job
    """What the ranks are told."""

    sitting: str
    """The sitting that it belongs to."""

    position: int
    """Place within the round."""

    command: tuple[str, ...]
    """Arguments that repeat this run."""

    machine: dict[str, object]
    """The machine, for the record."""

    root: Path
    """The results folder."""


def carry_out(
    attempt: Attempt,
    active: Active,
    on_beat: Callable[[Beat], None],
    keep: Callable[[Result], None],
) -> Result:
    """Run the attempt to its end, whatever that is, and `keep` its result.

    Ctrl-C and SIGTERM end the ranks and are raised again once the result is kept.
    """
    job = attempt.job
    started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    began = time.monotonic()
    ending, verdict, interruption = Ending(), None, None
    try:
        job.path().write_text(job.model_dump_json(indent=1), encoding="utf8")
        watch = Watch(job, _start(job, active), on_beat)
        ending = watch.ending
        watch.run(job.experiment.scenario.measure.timeout_seconds)
    except KeyboardInterrupt as stop:
        interruption = stop
        verdict = Verdict(Status.INTERRUPTED, ("stopped by the user",))
    except (OSError, AccelBenchError) as error:
        verdict = _not_run(error)
    with undisturbed():
        found = read_ranks(job)
        verdict = verdict or judge(job, ending, found)
        redactor = Redactor.from_environment({**os.environ, **job.experiment.scenario.environment})
        _redact_files(job, redactor)
        seconds = time.monotonic() - began
        result = _result(attempt, active, verdict, ending, found, started_at, seconds)
        result = Result.model_validate(redactor.redact_value(result.model_dump(mode="python")))
        keep(result)
    if interruption is not None:
        raise interruption
    return result


def _start(job: Job, active: Active) -> Sequence[RankProcess]:
    """Have the launcher start the ranks. Raises HookError when it returns anything else."""
    ranks = active.call_one("launch_ranks", job=job)
    found = ranks if isinstance(ranks, list | tuple) else ()
    numbers = [getattr(rank, "rank", None) for rank in found]
    if numbers != list(range(job.world_size)):
        launcher = active.answers("launch_ranks")
        assert launcher is not None
        wanted = f"the processes of {job.world_size} ranks"
        raise wrong_answer(launcher, "launch_ranks", wanted, ranks)
    return found


def _not_run(error: OSError | AccelBenchError) -> Verdict:
    """The ranks could not be started: a launcher's fault, or the machine's."""
    if isinstance(error, HookError) and not isinstance(error.__cause__, OSError):
        return Verdict(Status.PLUGIN_ERROR, (str(error),))
    return Verdict(Status.INFRA_ERROR, (f"the ranks could not be run: {error}",))


def _result(  # noqa: PLR0913, PLR0917 - the parts of one record
    attempt: Attempt,
    active: Active,
    verdict: Verdict,
    ending: Ending,
    found: dict[int, RankResult],
    started_at: str,
    seconds: float,
) -> Result:
    job = attempt.job
    status, reasons = verdict.status, verdict.reasons
    return Result(
        run_id=job.run_id,
        sitting=attempt.sitting,
        experiment=job.experiment,
        round=job.round,
        position=attempt.position,
        attempt=job.attempt,
        status=status,
        reasons=reasons,
        phase=verdict.phase,
        started_at=started_at,
        seconds=seconds,
        ranks=tuple(found[rank] for rank in sorted(found)),
        exits=tuple(describe_exit(ending.exits.get(rank)) for rank in range(job.world_size)),
        plugins=active.versions(),
        loss_tolerance=active.loss_tolerance(),
        machine=attempt.machine,
        command=attempt.command,
        folder=str(Path(job.folder).relative_to(attempt.root)),
        log_tail="" if status.completed else log_tail(job, verdict.guilty_rank),
    )


def log_tail(job: Job, rank: int) -> str:
    """The last of a rank's log, as text."""
    try:
        with job.log_path(rank).open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf8", errors="replace")
    except OSError:
        return ""


def _redact_files(job: Job, redactor: Redactor) -> None:
    """Take secrets out of logs and results, in place, once nobody writes to them any more."""
    ranks = range(job.world_size)
    for path in [*map(job.log_path, ranks), *map(job.result_path, ranks), job.path()]:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf8", errors="replace")
        clean = redactor.redact(text)
        if clean != text:
            path.write_text(clean, encoding="utf8")
