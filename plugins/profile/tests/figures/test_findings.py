"""Order of the findings of all ranks, and their wording."""

from __future__ import annotations

import csv
import io

import pytest
from accel_bench_profile.figures.findings import answer_of, findings_of
from accel_bench_profile.figures.schema import (
    CallTime,
    CommunicationTime,
    Gap,
    HostReads,
    HostTime,
    KernelTime,
    ModulePhase,
    ProfileReport,
    RankProfile,
    StackProfile,
)
from accel_bench_profile.view import profile_view

from accel_bench.report.formats import render_report
from accel_bench.result import Status

MLP = ModulePhase(module="layers.0.mlp", phase="forward")

KERNELS = (
    KernelTime(name="aten::mm", kind="matmul", calls=9, seconds=0.05),
    KernelTime(name="aten::copy_", kind="memory-bound", calls=100, seconds=0.01),
    KernelTime(name="aten::add", kind="memory-bound", calls=3, seconds=0.002),
)


def host(held_up: float = 0.0, own: float | None = None, reads: float = 0) -> HostTime:
    """A host that holds up a step of 100 ms, or reads values."""
    gap = Gap(place=MLP, seconds=held_up, own_seconds=held_up if own is None else own)
    read = HostReads(place=MLP, calls=reads, seconds=0.0)
    return HostTime(
        measures="no operation",
        seconds=held_up,
        share=held_up / 0.1,
        gaps=(gap,) if held_up else (),
        reads=(read,) if reads else (),
    )


def exposed(seconds: float) -> CommunicationTime:
    """Exposed communication in a step of 100 ms."""
    return CommunicationTime(
        seconds=seconds,
        exposed_seconds=seconds,
        share=seconds / 0.1,
        exposed_share=seconds / 0.1,
        collectives=(CallTime(name="gloo:all_reduce", calls=2, seconds=seconds),),
    )


def rank(number: int = 0, **fields: object) -> RankProfile:
    """A rank whose recorded step took 100 ms."""
    known = {"host": host(), "kernels": KERNELS, "kinds": {"matmul": 0.05, "memory-bound": 0.012}}
    return RankProfile.model_validate(
        {
            "rank": number,
            "device": "cpu",
            "steps": 3,
            "step_seconds": 0.1,
            "window_step_seconds": 0.09,
            "kernel_seconds": 0.062,
            **known,
            **fields,
        }
    )


def kinds(*ranks: RankProfile) -> list[str]:
    """Kinds of the findings, in order."""
    return [one.kind for one in findings_of(ranks)]


def test_what_costs_most_is_first_and_what_has_no_price_comes_later() -> None:
    assert kinds(rank(host=host(0.03, reads=2), communication=exposed(0.02))) == [
        "host",
        "communication",
        "read",
        "kernels",
    ]
    assert kinds(rank(host=host(0.03), communication=exposed(0.05)))[0] == "communication"
    assert kinds(rank()) == ["kernels"]


def test_what_other_work_may_have_taken_is_no_finding() -> None:
    assert kinds(rank(host=host(0.03, own=0.001))) == ["kernels"]


def test_a_rank_that_is_late_is_no_slow_communication() -> None:
    """Rank 1 is in its collective for as long as rank 0 sleeps."""
    sleeps = rank(0, host=host(0.04), communication=exposed(0.001))
    waits = rank(1, communication=exposed(0.041))
    found = findings_of([waits, sleeps])
    assert [one.kind for one in found] == ["host", "waiting", "kernels"]
    assert answer_of(found).startswith("rank 0: forward of layers.0.mlp holds up the step")
    assert found[1].text.startswith(
        "rank 0 is late: rank 1 waits for it in collectives for 40.0 ms"
    )


def test_nothing_recorded_is_said() -> None:
    assert answer_of(findings_of([rank(steps=0, step_seconds=None)])) == "nothing was recorded"


def test_steps_that_were_marked_for_nsight_are_the_answer() -> None:
    bare = {"host": None, "kernels": (), "kinds": {}, "step_seconds": None, "recorder": "nsight"}
    marked = (rank(0, **bare), rank(1, **bare))
    assert answer_of(findings_of(marked)) == (
        "marked for Nsight: 3 steps of each rank; see its report"
    )
    stack = StackProfile(
        scenario="work",
        stack="plain",
        run_id="run",
        status=Status.OK,
        folder="",
        answer="",
        ranks=marked,
    )
    report = ProfileReport(profiles=(stack,))
    assert report.exit_code == 0
    text = render_report(profile_view(report, 2), "table")
    assert "no step was recorded" not in text
    assert "fused" not in text
    assert answer_of(findings_of([rank(0, **{**bare, "steps": 0})])) == "nothing was recorded"


def test_a_value_that_all_ranks_read_is_named_once_after_what_has_a_price() -> None:
    found = findings_of([rank(0, host=host(reads=2)), rank(1, host=host(reads=3))])
    assert [one.kind for one in found] == ["read", "kernels"]
    assert found[0].text == (
        "ranks 0, 1: forward of layers.0.mlp reads a value of a tensor on the host (as .item() "
        "does) 3 times a step: costs nothing on this device; on a GPU each makes the host wait "
        "for the device"
    )
    cheap = HostReads(place=MLP, calls=1, seconds=0.001)
    priced = HostReads(place=ModulePhase(module="norm"), calls=1, seconds=0.002)
    waiting = host().model_copy(update={"measures": "device idle", "reads": (cheap, priced)})
    reads = [one for one in findings_of([rank(host=waiting)]) if one.kind == "read"]
    assert [one.seconds for one in reads] == [0.002, 0.001]


@pytest.fixture
def report() -> ProfileReport:
    ranks = (rank(warnings=("no room",)),)
    stack = StackProfile(
        scenario="work",
        stack="plain",
        run_id="run",
        status=Status.OK,
        folder="runs/one/profile",
        answer=answer_of(findings_of(ranks)),
        findings=findings_of(ranks),
        ranks=ranks,
    )
    return ProfileReport(profiles=(stack,))


def test_tables_are_by_time_and_by_count(report: ProfileReport) -> None:
    text = render_report(profile_view(report, 2), "table")
    by_time, _, by_count = text.partition("by count")
    assert by_time.index("aten::mm") < by_time.index("aten::copy_")
    assert by_count.index("aten::copy_") < by_count.index("aten::mm")
    assert "aten::add" not in text, "there is room for two"
    assert "rank 0: no room" in text
    assert "nothing stands out: matmul takes 80.6 % of the time of operations" in text


def test_a_spreadsheet_has_a_row_for_each_kernel(report: ProfileReport) -> None:
    rows = list(csv.DictReader(io.StringIO(render_report(profile_view(report, 2), "csv"))))
    assert [row["name"] for row in rows] == ["aten::mm", "aten::copy_", "aten::add"]
    assert rows[0] | {"stack": "plain", "seconds_per_step": "0.05", "status": "ok"} == rows[0]
    assert "| aten::mm | matmul |" in render_report(profile_view(report, 2), "markdown")


def test_a_run_that_recorded_nothing_is_a_failure(report: ProfileReport) -> None:
    assert report.exit_code == 0
    (stack,) = report.profiles
    nothing = (rank(steps=0, step_seconds=None),)
    for changed in ({"status": Status.FAILED}, {"ranks": ()}, {"ranks": nothing}):
        other = report.model_copy(update={"profiles": (stack.model_copy(update=changed),)})
        assert other.exit_code == 1
