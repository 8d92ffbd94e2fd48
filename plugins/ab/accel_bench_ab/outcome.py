"""Result of a command's run: its status, window, figures and effective configuration."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_bench.analysis.wording import count
from accel_bench.effective import Compilation, EffectiveConfiguration, OptimizerProgress
from accel_bench.job import HEARTBEAT_STEP, MEASURE, Job
from accel_bench.machine.info import Device
from accel_bench.result import (
    Metric,
    RankResult,
    Status,
    TensorUpdate,
    WeightUpdate,
    Window,
)
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench_ab.figures import read_figures
from accel_bench_ab.plugin import ENGINE, CommandOptions
from accel_bench_ab.record import Observed, Step, is_finite
from accel_bench_ab.window import sample_of, window_of

EARLY_STEPS = 8
"""Number of the last step after which every observed process sketches its weight changes."""

OUT_OF_MEMORY = re.compile(rb"OutOfMemoryError|out of memory")
"""Pattern of an out-of-memory error in a command's last output."""

KILLED = "the process was killed before it could say its peak"
"""Reason for the missing peaks of an allocator."""

SMALL = "no process of the command takes more than accel-bench's own beside it"
"""Reason for a missing peak: Linux counts a process from the peak of the one that started it."""

LAST_BYTES = 1 << 16
"""Number of last bytes of the output that are searched for an out-of-memory error."""


@dataclass(frozen=True)
class Finished:
    """Exit of a command, and the observations of its processes."""

    code: int
    """Exit code; negative for the signal that ended it."""

    ended_by: str
    """Name of the signal with which accel-bench ended the command; empty if it ended by itself."""

    started: float
    ended: float
    """End of the command, in seconds of the monotonic clock."""

    peak_bytes: int
    """Peak resident bytes of the command's largest process; 0 if unknown."""

    killed_for_memory: bool
    output: Path
    observed: Observed

    files_before: Mapping[str, object] = field(default_factory=dict)
    """States of the files with figures before the command started."""

    def seen(self) -> dict[str, Any]:
        """Return what was observed of the command, as JSON values.

        The keys are the missing observations with their reasons (`unseen`), the dtype of autocast,
        and the dtypes of the weights. If steps are unseen, `ab` counts whole runs instead.
        """
        facts = self.observed.ranks[0].facts if self.observed.ranks else {}
        return {
            "unseen": self.observed.unseen,
            "autocast": facts.get("autocast", ""),
            "dtypes": [*effective_of(self.observed).trained_dtypes],
        }


def result_of(
    job: Job, options: CommandOptions, finished: Finished, heartbeat: Heartbeat
) -> RankResult:
    """Return the rank's result for a finished command: status, window, metrics and evidence."""
    observed, counts = finished.observed, job.experiment.scenario.counts
    window = None
    reasons = [*_failures(finished)]
    status = Status.OK
    if reasons:
        status = Status.OOM if _ran_out_of_memory(finished) else Status.FAILED
    elif job.purpose == MEASURE:
        window = _call(finished) if counts == "calls" else _window(job, options, observed)
        missing = [*_missing(observed, counts, window)]
        if missing:
            status, reasons, window = Status.INVALID, missing, None
    heartbeat.page[HEARTBEAT_STEP] = window.samples[-1].step + 1 if window else 0
    return RankResult(
        rank=0,
        status=status,
        reasons=tuple(reasons),
        phase="window" if reasons else "",
        device=Device(job.experiment.scenario.resources.device, 0),
        window=window,
        metrics=tuple(_metrics(options, finished)) if status.completed else (),
        effective=effective_of(observed),
        update=update_of(observed, bool(finished.ended_by)),
        evidence={ENGINE: _evidence(options, finished, window)},
    )


def _failures(finished: Finished) -> Iterator[str]:
    """Yield the reason why a command failed, unless accel-bench itself ended it."""
    if finished.ended_by or finished.code == 0:
        return
    if finished.code < 0:
        known = {number.value: number.name for number in signal.Signals}
        yield f"the command was ended by {known.get(-finished.code, f'signal {-finished.code}')}"
    else:
        yield f"the command ended with exit code {finished.code}"


def _ran_out_of_memory(finished: Finished) -> bool:
    if finished.code == -signal.SIGKILL:
        return finished.killed_for_memory
    with finished.output.open("rb") as file:
        file.seek(max(0, finished.output.stat().st_size - LAST_BYTES))
        return OUT_OF_MEMORY.search(file.read()) is not None


def _call(finished: Finished) -> Window:
    """Return a window with the run of the whole command as its only sample."""
    seconds = finished.ended - finished.started
    sample = sample_of(0, seconds, Step(finished.ended, 1, 1, 1, math.nan, 0), counted=True)
    return Window(started=finished.started, ended=finished.ended, samples=(sample,))


def _window(job: Job, options: CommandOptions, observed: Observed) -> Window | None:
    if not observed.steps:
        return None
    began = int(observed.ranks[0].facts["began"]) / 1e9
    tokens = job.experiment.scenario.counts == "tokens" and not observed.tokens_unseen
    return window_of(observed.steps, began, job.warmup, options.steps, tokens)


def _missing(observed: Observed, counts: str, window: Window | None) -> Iterator[str]:
    """Yield the reason why this run lacks an observation that the comparison needs.

    `counts` is the unit of the comparison: `calls`, `steps` or `tokens`.
    """
    if counts == "calls":
        return
    if observed.steps_unseen:
        yield f"steps not seen: {observed.steps_unseen}; compare by wall time: --by wall"
    elif window is None:
        yield f"{count(len(observed.steps), 'optimizer step')} seen, 2 are needed; train longer"
    elif counts == "tokens" and observed.tokens_unseen:
        yield f"tokens not seen: {observed.tokens_unseen}; compare by steps: --by steps"


def _metrics(options: CommandOptions, finished: Finished) -> Iterator[Metric]:
    """Yield metrics of a run: the wall time, peaks of memory and the command's own figures."""
    if not finished.ended_by:
        yield _metric("wall_seconds", finished.ended - finished.started, "seconds")
    first = finished.observed.ranks[0].facts if finished.observed.ranks else {}
    whole = bool(first.get("ended", True))
    resident = first.get("peak_rss_bytes") if whole else None
    resident = resident or max(first.get("peak_rss_bytes") or 0, finished.peak_bytes) or None
    on_host = {"kind": "rss", "reason": "" if resident else SMALL}
    yield _metric("run_peak_rss_bytes", resident, "bytes", figure="run_peak_rss", **on_host)
    yield _metric("peak_rss_bytes", resident, "bytes", figure="peak_rss", **on_host)
    if "peak_allocated_bytes" in first:
        for name, kind in (("allocated", "memory"), ("reserved", "reserved")):
            value = first[f"peak_{name}_bytes"] if whole else None
            more = {"figure": f"peak_{kind}", "kind": "allocated"}
            reason = "" if whole else KILLED
            yield _metric(f"peak_{kind}_bytes", value, "bytes", reason=reason, **more)
    else:
        yield _metric("peak_memory_bytes", resident, "bytes", figure="peak_memory", **on_host)
    yield from read_figures(options, finished.output, finished.files_before)


def _metric(name: str, value: float | None, unit: str, **more: Any) -> Metric:
    known: Any = {"scope": "rank", "better": "lower", "plugin": ENGINE, **more}
    return Metric(name=name, value=value, unit=unit, **known)


def effective_of(observed: Observed) -> EffectiveConfiguration:
    """Return the effective configuration of the steps, as observed in the first rank.

    Versions of Python and torch, world size, threads and device may differ between compared
    commands, and from accel-bench's own, so that only the evidence has them.
    """
    if not observed.ranks:
        return EffectiveConfiguration()
    facts = observed.ranks[0].facts
    trained: dict[str, int] = {}
    for tensor in next(iter(facts["updates"].values()), {}).values():
        trained[tensor["dtype"]] = trained.get(tensor["dtype"], 0) + tensor["elements"]
    compiled = facts.get("graphs")
    return EffectiveConfiguration(
        trained_dtypes=trained,
        optimizer=facts["optimizer"] or None,
        compilation=None
        if compiled is None
        else Compilation(graphs=compiled, graph_breaks=facts["graph_breaks"]),
        optimizer_progress=OptimizerProgress(
            steps=facts["steps"],
            learning_rates=facts["learning_rates"],
            weight_decays=facts["weight_decays"],
            hyperparameters=facts["hyperparameters"],
            state_dtypes=facts["state_dtypes"],
        ),
    )


def update_of(observed: Observed, ended: bool) -> WeightUpdate | None:
    """Return the last recorded change of the weights, as short sums; None if none was recorded.

    If accel-bench `ended` the command, changes after step 8 are ignored: the number of steps of
    such runs differs. Weights that are not finite have no change.
    """
    facts = observed.ranks[0].facts if observed.ranks else {}
    updates = {int(step): update for step, update in facts.get("updates", {}).items()}
    if ended:
        updates = {step: update for step, update in updates.items() if step <= EARLY_STEPS}
    if not updates:
        return None
    steps = max(updates)
    tensors = updates[steps]
    if not is_finite(tensors):
        return None
    return WeightUpdate(
        steps=steps,
        trained_tensors=len(tensors),
        trained_elements=sum(tensor["elements"] for tensor in tensors.values()),
        tensors={
            name: TensorUpdate(
                elements=tensor["elements"],
                sketch=tuple(float(f"{v:.7g}") for v in tensor["change"]),
            )
            for name, tensor in tensors.items()
        },
        weights=(),
        seconds=0.0,
    )


def _evidence(options: CommandOptions, finished: Finished, window: Window | None) -> dict[str, Any]:
    """Return JSON evidence of the command, its processes and the window."""
    unseen = [f"{what} not seen: {reason}" for what, reason in finished.observed.unseen.items()]
    if not options.observe:
        unseen = ["not observed (--no-observe)"]
    parts = [*dict.fromkeys(unseen)]
    if finished.ended_by:
        steps = len(window.samples) if window else 0
        parts.append(f"ended by {finished.ended_by} after {count(steps, 'measured step')}")
    summary = {"summary": "; ".join(parts)} if parts else {}
    first = finished.observed.ranks[0].facts if finished.observed.ranks else {}
    names = ("python", "torch", "world_size", "threads", "device_name")
    own: dict[str, Any] = {name: first[name] for name in names if name in first}
    return {**summary, **own, "command": [*options.command], "unseen": finished.observed.unseen}
