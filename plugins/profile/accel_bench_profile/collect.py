"""Profiles of a session's runs: checks of the plan, and collection after the session."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from accel_bench.api.events import needing_tensorboard
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan
from accel_bench.result import Result, Status
from accel_bench.runner.outcome import steps_of
from accel_bench_profile.figures.findings import answer_of, findings_of
from accel_bench_profile.figures.schema import (
    PROFILE_FOLDER,
    ProfileReport,
    RankProfile,
    StackProfile,
    read_profile,
)

MEASURED, PROFILED = "measured", "profiled"
"""Folders of a rank for TensorBoard scalars: of measured steps, and of profiled steps."""


def refuse_unprofiled(plan: Plan, machine: Machine, marks: bool) -> None:
    """Raise ScenarioError for a plan that cannot be profiled.

    The reasons are an engine that does not train with torch, a missing torch, and marks for Nsight
    (`marks`) without a CUDA device.
    """
    for planned in plan.runnable:
        stack = planned.experiment.stack.name
        engine = planned.active.answers("build_engine")
        if engine is not None and not engine.instance.uses_torch:
            raise ScenarioError(
                f"stack {stack!r}: there is nothing to profile, since engine {engine.name!r} does "
                "not train with torch; name one that does in the scenario, or by --set engine=NAME"
            )
        if "torch" not in planned.machine(machine).versions:
            raise ScenarioError(f"stack {stack!r}: torch is not installed, which records profiles")
        device = planned.experiment.scenario.resources.device
        if marks and device != "cuda":
            raise ScenarioError(
                f"stack {stack!r}: --nvtx marks steps for Nsight, which "
                f"records CUDA devices, and this one runs on {device!r}; leave it out, and torch's "
                "profiler records"
            )


def collect_profiles(root: Path, results: Sequence[Result]) -> ProfileReport:
    """Return the profile of the last run of each stack; `root` is the results folder."""
    last = {(run.experiment.id, run.experiment.stack.name): run for run in results}
    return ProfileReport(profiles=tuple(_of_run(root, run) for run in last.values()))


def _of_run(root: Path, run: Result) -> StackProfile:
    folder = root / run.folder / PROFILE_FOLDER
    profiles: list[RankProfile] = []
    missing: list[str] = []
    for rank in (result.rank for result in run.ranks):
        try:
            profile = read_profile(folder / f"rank{rank}")
        except AccelBenchError as error:
            missing.append(str(error))
            continue
        if profile is None:
            missing.append(f"rank {rank} has left no profile here")
            continue
        profiles.append(profile)
        if not profile.steps:
            why = [text for text in profile.warnings if text not in run.reasons][:1]
            missing.append(": ".join((f"rank {rank} has recorded no step", *why)))
    findings = findings_of(profiles)
    ended = f"no profile: the run ended as {run.status.value}"
    return StackProfile(
        scenario=run.experiment.scenario.name,
        stack=run.experiment.stack.name,
        sweep=run.experiment.sweep,
        tag=run.experiment.tag,
        run_id=run.run_id,
        status=Status.FAILED if missing and run.status.completed else run.status,
        reasons=(*run.reasons, *missing),
        folder=str(folder),
        events=_write_events(folder, run, profiles),
        answer=answer_of(findings) if profiles else ": ".join((ended, *run.reasons[:1])),
        findings=findings,
        ranks=tuple(sorted(profiles, key=attrgetter("rank"))),
    )


def _write_events(folder: Path, run: Result, profiles: Sequence[RankProfile]) -> str:
    """Write scalars of each rank's steps beside its profile; return the folder or an error text.

    Measured and profiled steps are two runs of TensorBoard: as one series they would have a jump
    unrelated to the training.
    """
    ranks = {rank.rank: rank for rank in run.ranks}
    written = ""
    for profile in profiles:
        rank = ranks.get(profile.rank)
        if rank is None or rank.window is None or not profile.scalars:
            continue
        own = folder / f"rank{profile.rank}"
        first = (steps_of(rank) or 0) - rank.profiled_steps
        measured = (
            (sample.step, sample.seconds, sample.real_tokens, None)
            for sample in rank.window.samples
        )
        profiled = (
            (number, step.seconds, step.elements, step.memory_bytes)
            for number, step in enumerate(profile.scalars, first)
        )
        try:
            write_scalars(own / MEASURED, step_scalars(measured))
            write_scalars(own / PROFILED, step_scalars(profiled))
        except (AccelBenchError, OSError) as error:
            return str(error)
        written = str(folder)
    return written


WALL_TIME, ELAPSED_TIME = "Wall Time", "Elapsed Time"
ELEMENTS_PER_SECOND, MEMORY = "Elements per Second", "Memory"
"""Tags of a step's scalars: seconds, seconds since the first step, tokens/s, and bytes."""


def write_scalars(folder: Path, rows: Iterable[tuple[int, Mapping[str, float]]]) -> None:
    """Write the scalars of steps as a TensorBoard event file in a folder.

    `rows` are pairs of a step's number and its scalars by tag. Raises AccelBenchError if
    tensorboard is not installed.
    """
    with needing_tensorboard():
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer = EventFileWriter(str(folder))
    try:
        for step, scalars in rows:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
    finally:
        writer.close()


def step_scalars(
    steps: Iterable[tuple[int, float, int, int | None]],
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each step's number and its TensorBoard scalars by tag.

    A step is given as its number, seconds, tokens and bytes of memory.
    """
    elapsed = 0.0
    for number, seconds, elements, memory in steps:
        elapsed += seconds
        scalars = {WALL_TIME: seconds, ELAPSED_TIME: elapsed}
        scalars |= {ELEMENTS_PER_SECOND: elements / seconds} if seconds else {}
        yield number, scalars | ({} if memory is None else {MEMORY: memory})
