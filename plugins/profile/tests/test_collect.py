"""Collection of profiles: a run may be ok without a profile."""

from __future__ import annotations

from pathlib import Path

from accel_bench_profile.collect import collect_profiles
from accel_bench_profile.figures.schema import (
    PROFILE_FILE,
    PROFILE_FOLDER,
    ProfileReport,
    RankProfile,
)
from analysis_factory import make_experiment, make_rank, make_result

from accel_bench.result import Status

LOST = "torch's profiler: AttributeError: no attribute 'is_python_function'"


def collect(root: Path, status: Status, *profiles: RankProfile) -> ProfileReport:
    """Return the report of a run with the given status and rank profiles."""
    ranks = [make_rank(one.rank) for one in profiles]
    run = make_result(make_experiment(), status=status, ranks=ranks, reasons=("slow",))
    for one in profiles:
        folder = root / run.folder / PROFILE_FOLDER / f"rank{one.rank}"
        folder.mkdir(parents=True)
        (folder / PROFILE_FILE).write_text(one.model_dump_json())
    return collect_profiles(root, [run])


def profile(rank: int, steps: int, *warnings: str) -> RankProfile:
    seconds = 0.1 if steps else None
    return RankProfile(
        rank=rank,
        device="cpu",
        window_step_seconds=0.1,
        steps=steps,
        step_seconds=seconds,
        warnings=warnings,
    )


def test_a_profile_without_a_step_is_not_ok(tmp_path: Path) -> None:
    report = collect(tmp_path, Status.OK, profile(0, 3), profile(1, 0, LOST))
    (found,) = report.profiles
    assert (report.exit_code, found.status) == (1, Status.FAILED)
    assert found.reasons == ("slow", f"rank 1 has recorded no step: {LOST}")


def test_a_profile_with_steps_has_the_status_of_its_run(tmp_path: Path) -> None:
    report = collect(tmp_path, Status.DEGRADED, profile(0, 3))
    assert (report.exit_code, report.profiles[0].status) == (0, Status.DEGRADED)


def test_a_run_that_has_failed_keeps_its_status(tmp_path: Path) -> None:
    report = collect(tmp_path, Status.OOM, profile(0, 0, "slow"))
    (found,) = report.profiles
    assert (report.exit_code, found.status) == (1, Status.OOM)
    assert found.reasons == ("slow", "rank 0 has recorded no step")
