"""Figures of a device, from a trace in torch's format whose every figure is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_bench_profile.figures.findings import answer_of, findings_of
from accel_bench_profile.figures.schema import ModulePhase, RankProfile
from accel_bench_profile.figures.spans import EDGE, Cycle, Span, in_order
from accel_bench_profile.figures.summarize import figures_of

from .kineto_trace import ADAM, FLASH, GEMM, REDUCE, read_trace, write_trace

LAYER = ModulePhase(module="layers.0", phase="forward")


@pytest.fixture
def profile(tmp_path: Path) -> RankProfile:
    """The profile made from the trace."""
    figures = figures_of([read_trace(write_trace(tmp_path / "made.json"))], 3)
    return RankProfile(rank=0, device="cuda", window_step_seconds=None, **figures)


def test_kernels_are_counted_and_timed_on_the_device(profile: RankProfile) -> None:
    assert (profile.steps, profile.step_seconds) == (2, pytest.approx(0.01))
    assert [one.name for one in profile.kernels[:2]] == [GEMM, REDUCE]
    assert profile.kernels[0].calls == 1
    assert profile.kernels[0].seconds == pytest.approx(0.003)
    assert profile.kernel_seconds == pytest.approx(0.007495)
    assert profile.kinds == {
        "matmul": pytest.approx(0.003),
        "communication": pytest.approx(0.0015),
        "attention": pytest.approx(0.001),
        "optimizer": pytest.approx(0.001),
        "memory-bound": pytest.approx(0.000995),
    }


def test_fused_kernels_are_known_by_their_names(profile: RankProfile) -> None:
    found = {one.name: one.what for one in profile.fused}
    assert found == {FLASH: "attention in one kernel", ADAM: "optimizer in one kernel"}


def test_the_device_is_idle_where_the_host_works_and_not_where_it_waits(
    profile: RankProfile,
) -> None:
    host = profile.host
    assert host is not None
    assert host.measures == "device idle"
    assert host.seconds == pytest.approx(0.00256)
    assert host.share == pytest.approx(0.256)
    assert host.waiting_seconds == pytest.approx(0.0022)
    (gap,) = host.gaps
    assert (gap.place, gap.seconds) == (LAYER, pytest.approx(0.00151))
    assert gap.own_seconds == pytest.approx(0.00121), "less what other work took meanwhile"
    assert host.preempted_seconds == pytest.approx(0.00035)
    assert [(read.place, read.calls) for read in host.reads] == [(LAYER, 1)]
    assert host.reads[0].seconds == pytest.approx(0.0022)


def test_launch_gaps_are_before_kernels_that_were_launched_when_all_others_had_ended(
    profile: RankProfile,
) -> None:
    launches = profile.host.launches if profile.host else None
    assert launches is not None
    assert launches.kernels == 6
    # The elementwise kernel and the optimizer in both steps, and the first of the second step.
    assert launches.late == 2.5
    assert launches.seconds == pytest.approx((2 * (1510 + 595) + 900) / 2 / 1e6)
    assert launches.median_seconds == pytest.approx(400e-6)


def test_communication_is_exposed_where_no_kernel_hides_it(profile: RankProfile) -> None:
    found = profile.communication
    assert found is not None
    assert (found.seconds, found.exposed_seconds) == (pytest.approx(0.0015), pytest.approx(0.001))
    assert (found.share, found.exposed_share) == (pytest.approx(0.15), pytest.approx(0.1))
    assert [(one.name, one.calls) for one in found.collectives] == [(REDUCE, 1)]


def test_the_answer_is_what_takes_longest_and_the_rest_follows(profile: RankProfile) -> None:
    findings = findings_of([profile])
    assert [one.kind for one in findings] == ["host", "host", "communication", "kernels"]
    assert answer_of(findings) == ("forward of layers.0 waits for the device once a step, 2.20 ms")
    assert findings[1].text == (
        "forward of layers.0 holds up the step: the device is idle for 1.51 ms of 10.0"
    )


def edged(step: int, *edge: Span) -> Cycle:
    """Two steps of 10 ms with one kernel, of which the host finishes the first after 1 ms."""
    steps = [
        Span(name="ProfilerStep#1", kind="range", start=0, end=step),
        Span(name="ProfilerStep#2", kind="range", start=step, end=20_000_000),
    ]
    kernel = Span(name=GEMM, kind="kernel", start=0, end=19_000_000)
    return Cycle(in_order([*steps, kernel, *edge]))


def test_a_host_that_runs_ahead_makes_no_step_shorter() -> None:
    found = [figures_of([edged(at)], 3)["step_seconds"] for at in (1_000_000, 10_000_000)]
    assert found == [0.01, 0.01]


def test_what_the_profile_itself_waits_for_is_no_finding() -> None:
    wait = Span(
        name="cudaDeviceSynchronize", kind="runtime", start=18_000_000, end=19_500_000, lane=1
    )
    edge = Span(name=EDGE, kind="range", start=17_900_000, end=19_600_000)
    of_the_work = figures_of([edged(10_000_000, wait)], 3)["host"]
    assert of_the_work.reads[0].calls == 0.5
    own = figures_of([edged(10_000_000, edge, wait)], 3)["host"]
    assert (own.reads, own.waiting_seconds) == ((), 0.0)
    assert own.seconds == pytest.approx(0.0004 / 2)
