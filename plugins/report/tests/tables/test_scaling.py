"""How stacks scale: speed-up, efficiency, the fitted serial share, and what is only estimated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_report.sweep import scaling_of
from accel_bench_report.tables.scaling import Scaling, project
from accel_bench_report.tables.scaling_view import scaling_tables
from analysis_factory import make_experiment, make_ranks, make_result, make_rounds, make_summary

from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment

NOISE = (1.0, 1.004, 0.997, 1.002, 0.998)


def point(size: int, train: dict[str, int] | None = None, **sweep: Any) -> Experiment:
    """A stack on so many devices."""
    work = {"resources": {"devices": size}, "train": train or {"micro_batch_size": 4}}
    return make_experiment(sweep={"resources.devices": size, **sweep}, scenario=work)


def runs(experiment: Experiment, seconds: float, noise: Sequence[float] = NOISE) -> list[Result]:
    """A run in each round."""
    return [
        make_result(experiment, round=number, ranks=make_ranks(experiment, one * seconds))
        for number, one in enumerate(noise)
    ]


def scale(*measured: tuple[Experiment, list[Result]]) -> Scaling:
    """The only scaling of a summary of these."""
    experiments = [experiment for experiment, _ in measured]
    made = make_summary(experiments, [run for _, own in measured for run in own])
    (scaling,) = scaling_of(made)
    return scaling


def weak(share: float, sizes: Sequence[int] = (1, 2, 4)) -> Scaling:
    """Each device's batch stays, and the law holds to the noise."""
    times = [size / (size - share * (size - 1)) for size in sizes]
    return scale(*((p, runs(p, 0.1 * t)) for p, t in zip(map(point, sizes), times, strict=True)))


def strong(share: float, sizes: Sequence[int] = (1, 2, 4)) -> Scaling:
    """The global batch stays."""
    points = [point(size, {"global_batch_size": 8}) for size in sizes]
    times = [share + (1 - share) / size for size in sizes]
    return scale(*((p, runs(p, 0.4 * t)) for p, t in zip(points, times, strict=True)))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_weak_scaling_keeps_each_device_s_batch_and_fits_gustafson(share: float) -> None:
    scaling = weak(share)
    assert scaling.kind == "weak"
    assert scaling.serial_share is not None
    assert scaling.serial_share.law == "Gustafson"
    assert scaling.serial_share.share == pytest.approx(share, abs=1e-9)
    first, _, last = scaling.points
    assert first.efficiency and last.efficiency and last.figure.ratio
    assert first.efficiency.median == 1.0
    assert last.figure.ratio.median == pytest.approx(4 - 3 * share)
    assert last.efficiency.median == pytest.approx((4 - 3 * share) / 4)
    assert last.relative_step_seconds is not None
    assert last.relative_step_seconds.median == pytest.approx(4 / (4 - 3 * share))
    assert last.step_seconds is not None
    assert last.step_seconds.median == pytest.approx(0.1 * 4 / (4 - 3 * share), rel=0.01)
    assert last.figure.paired


def test_nodes_that_differ_are_sizes_too() -> None:
    listed = [[2, 1], [4, 2], [8, 4]]
    points = [
        make_experiment(
            sweep={"resources.devices_by_node": nodes},
            scenario={"resources": {"devices_by_node": nodes}, "train": {"micro_batch_size": 4}},
        )
        for nodes in listed
    ]
    scaling = scale(*((one, runs(one, 0.1)) for one in points))
    assert scaling.kind == "weak"
    assert [one.devices_by_node for one in scaling.points] == [*map(tuple, listed)]
    assert [one.efficiency and one.efficiency.median for one in scaling.points] == [1.0] * 3
    (table,) = scaling_tables([scaling])
    devices, *_ = table.columns
    assert [devices.cell(one) for one in scaling.points] == ["3 (2 + 1)", "6 (4 + 2)", "12 (8 + 4)"]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_strong_scaling_keeps_the_global_batch_and_fits_amdahl(share: float) -> None:
    scaling = strong(share)
    assert scaling.kind == "strong"
    assert scaling.serial_share is not None
    assert scaling.serial_share.law == "Amdahl"
    assert scaling.serial_share.share == pytest.approx(share, abs=1e-9)
    assert scaling.serial_share.largest_deviation < 1e-9
    speedup = 1 / (share + (1 - share) / 4)
    last = scaling.points[-1]
    assert last.figure.ratio and last.relative_step_seconds and last.efficiency
    assert last.figure.ratio.median == pytest.approx(speedup)
    assert last.relative_step_seconds.median == pytest.approx(1 / speedup)
    assert last.efficiency.median == pytest.approx(speedup / 4)
    assert [row.global_batch_size for row in scaling.points] == [8, 8, 8]


def test_the_interval_of_the_share_is_over_rounds_and_holds_the_truth() -> None:
    one, two = point(1), point(2)
    wide = [1.0, 1.05, 0.96, 1.03, 0.97]
    scaling = scale((one, runs(one, 0.1)), (two, runs(two, 0.1 * 2 / 1.9, noise=wide)))
    share = scaling.serial_share
    assert share is not None and share.low is not None and share.high is not None
    assert share.low < 0.1 < share.high
    assert share.sizes == 2
    single = [*runs(one, 0.1, noise=[1.0]), *runs(two, 0.11, noise=[1.0])]
    (alone,) = scaling_of(make_summary([one, two], single, rounds=1))
    assert alone.serial_share is not None and alone.serial_share.low is None


def test_rounds_of_points_that_ran_one_after_another_are_no_pairs() -> None:
    one, two = point(1), point(2)
    later = [
        run.model_copy(update={"started_at": run.started_at.replace("T00", "T09")})
        for run in runs(two, 0.1)
    ]
    scaling = scale((one, runs(one, 0.1)), (two, later))
    assert not scaling.points[1].figure.paired
    ratio = scaling.points[1].figure.ratio
    assert ratio is not None and ratio.median == pytest.approx(2.0)
    paired = weak(0.0, (1, 2)).points[1].figure.ratio
    assert paired is not None and paired.low is not None and ratio.low is not None
    assert paired.low > ratio.low  # the noise that both share is gone


def test_a_projection_is_an_estimate_beside_what_was_measured() -> None:
    scaling = project(strong(0.05), (8, 1_000_000))
    assert [row.figure.world_size for row in scaling.points] == [1, 2, 4]
    near, far = scaling.projections
    assert near.estimated is True
    assert near.speedup.median == pytest.approx(1 / (0.05 + 0.95 / 8))
    assert near.efficiency.median == pytest.approx(near.speedup.median / 8)
    assert far.speedup.median == pytest.approx(20, rel=1e-3)
    speed = scaling.points[0].figure.tokens_per_second
    assert speed is not None
    assert near.tokens_per_second.median == pytest.approx(speed.median * near.speedup.median)


def test_faster_than_linear_is_no_promise_for_more_devices() -> None:
    scaling = project(weak(-0.04), (8,))
    assert scaling.serial_share is not None
    assert scaling.serial_share.share == pytest.approx(-0.04)
    assert scaling.projections[0].speedup.median == 8.0


@pytest.mark.parametrize("scaling", [weak(-0.2), strong(-0.3), weak(-1.19, (1, 2))])
def test_an_impossible_share_is_refused_with_its_reason(scaling: Scaling) -> None:
    found = project(scaling, (8,))
    assert (found.serial_share, found.projections) == (None, ())
    assert re.match(
        r"the fit says -\d+ % of the time, which no share can", found.serial_share_reason
    )


def test_where_more_devices_are_slower_nothing_is_estimated_for_still_more() -> None:
    for scaling in (project(weak(1.2, (1, 2)), (8,)), project(strong(1.5, (1, 2)), (8,))):
        assert scaling.serial_share is not None and scaling.serial_share.share > 1
        assert scaling.projections == ()
        assert "more devices were not faster" in scaling.serial_share_reason


def test_without_a_batch_that_stays_there_is_no_law_and_no_projection() -> None:
    one = point(1, {"micro_batch_size": 2}, **{"train.micro_batch_size": 2})
    two = point(2, {"micro_batch_size": 3}, **{"train.micro_batch_size": 3})
    scaling = project(scale((one, runs(one, 0.1)), (two, runs(two, 0.1))), (8,))
    assert (scaling.kind, scaling.serial_share, scaling.projections) == ("mixed", None, ())
    assert "no law is fitted" in scaling.serial_share_reason


def test_other_swept_keys_and_stacks_scale_for_themselves() -> None:
    points = [point(size, {"micro_batch_size": m}, **{"train.micro_batch_size": m})
              for m in (1, 4) for size in (1, 2)]  # fmt: skip
    summary = make_summary(points, [run for p in points for run in runs(p, 0.1)])
    assert [(one.sweep, one.kind) for one in scaling_of(summary)] == [
        ({"train.micro_batch_size": 1}, "weak"),
        ({"train.micro_batch_size": 4}, "weak"),
    ]


def test_a_point_that_failed_leaves_the_others_and_says_how_it_ended() -> None:
    one, two, four = map(point, (1, 2, 4))
    failed = [make_result(four, round=n, status=Status.OOM) for n in range(5)]
    scaling = scale((one, runs(one, 0.1)), (two, runs(two, 0.1)), (four, failed))
    assert scaling.points[2].figure.verdict_reason == "ended as oom"
    assert scaling.points[2].efficiency is None
    assert scaling.serial_share is not None and scaling.serial_share.sizes == 2
    lost = scale((one, [make_result(one, status=Status.FAILED)]), (two, runs(two, 0.1)))
    assert "smallest point" in lost.serial_share_reason
    assert lost.points[1].figure.verdict_reason == "the reference point ended as failed"


def test_a_sweep_of_something_else_does_not_scale() -> None:
    points = [make_experiment(sweep={"train.seed": n}) for n in (1, 2)]
    made = [run for one in points for run in make_rounds(one, [0.1] * 5)]
    assert scaling_of(make_summary(points, made)) == ()
