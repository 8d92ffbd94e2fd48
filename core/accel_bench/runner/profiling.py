"""Profile the runs of a session: what is refused before, and what is collected after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accel_bench.analysis.profiles.answer import answer_of, findings_of
from accel_bench.analysis.profiles.reading import read_profile
from accel_bench.analysis.profiles.schema import ProfileReport, RankProfile, StackProfile
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.interchange.tensorboard_events import step_scalars, write_scalars
from accel_bench.job import PROFILE_FOLDER
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan
from accel_bench.result import Result


def refuse_without_torch(plan: Plan, machine: Machine) -> None:
    """Raise ScenarioError for an engine that does not train with torch, and where there is none."""
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


def collect_profiles(root: Path, results: Sequence[Result]) -> ProfileReport:
    """Return what the ranks of runs have left in their folders in the results folder `root`."""
    last = {(run.experiment.id, run.experiment.stack.name): run for run in results}
    return ProfileReport(profiles=tuple(_of_run(root, run) for run in last.values()))


def _of_run(root: Path, run: Result) -> StackProfile:
    folder = root / run.folder / PROFILE_FOLDER
    ranks = [rank.rank for rank in run.ranks]
    found = {rank: read_profile(folder / f"rank{rank}") for rank in ranks}
    profiles = [profile for profile in found.values() if profile is not None]
    missing = [f"rank {rank} has left no profile here" for rank in ranks if found[rank] is None]
    findings = findings_of(profiles)
    events = _write_events(folder, run, profiles)
    return StackProfile(
        scenario=run.experiment.scenario.name,
        stack=run.experiment.stack.name,
        sweep=run.experiment.sweep,
        run_id=run.run_id,
        status=run.status,
        reasons=(*run.reasons, *missing),
        folder=str(folder),
        events=events,
        answer=answer_of(findings) if profiles else _no_profile(run),
        findings=findings,
        ranks=tuple(sorted(profiles, key=_number)),
    )


def _write_events(folder: Path, run: Result, profiles: Sequence[RankProfile]) -> str:
    """Write the scalars of each rank's steps beside its traces; return where, or why not."""
    windows = {rank.rank: rank.window for rank in run.ranks}
    written = ""
    for profile in profiles:
        window = windows.get(profile.rank)
        if window is None or not profile.scalars:
            continue
        try:
            write_scalars(folder / f"rank{profile.rank}", step_scalars(window, profile.scalars))
        except (AccelBenchError, OSError) as error:
            return str(error)
        written = str(folder)
    return written


def _number(profile: RankProfile) -> int:
    return profile.rank


def _no_profile(run: Result) -> str:
    return f"no profile: the run ended as {run.status.value}" + "".join(
        f": {reason}" for reason in run.reasons[:1]
    )
