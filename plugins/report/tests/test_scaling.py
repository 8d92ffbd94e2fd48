"""`accel-bench scaling`: which points it runs, in which order, and what it shows of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_report.scaling import ScalingOptions, scaling_request
from cli.program import call, write_nulls

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import make_plan
from accel_bench.scenario.find import read_draft

QUICK = ("--set", "parallel=none", "--oversubscribe", "--only", "baseline", "-q")


def batches(file: Path, **options: Any) -> list[tuple[int, int, int, int]]:
    """World size, micro batch, accumulation and global batch of each planned point."""
    settings = {"set_": ["parallel=none", *options.pop("set_", [])], "oversubscribe": True}
    made = ScalingOptions(scenario=str(file), **settings, **options)
    draft, machine = read_draft(file), read_machine()
    plan = make_plan(draft, machine, scaling_request(draft, machine, made))
    scenarios = [planned.experiment.scenario for planned in plan.planned]
    return [
        (s.world_size, s.train.micro_batch_size, s.train.gradient_accumulation,
         s.train.global_batch_size)
        for s in scenarios
    ]  # fmt: skip


def test_weak_scaling_keeps_what_a_device_had_in_the_file(tmp_path: Path) -> None:
    file = write_nulls(tmp_path, stacks="{baseline: []}", train="{micro_batch_size: 4}")
    assert batches(file, devices="1,2,4") == [(1, 4, 1, 4), (2, 4, 1, 8), (4, 4, 1, 16)]
    file = write_nulls(tmp_path, stacks="{baseline: []}", train="{global_batch_size: 8}")
    assert batches(file, devices="1,2") == [(1, 8, 1, 8), (2, 8, 1, 16)]


def test_strong_scaling_keeps_the_global_batch_of_the_file(tmp_path: Path) -> None:
    file = write_nulls(tmp_path, stacks="{baseline: []}", train="{micro_batch_size: 4}")
    assert batches(file, devices="1,2,4", strong=True) == [(1, 4, 1, 4), (2, 2, 1, 4), (4, 1, 1, 4)]
    train = "{micro_batch_size: 1, gradient_accumulation: 4}"
    file = write_nulls(tmp_path, stacks="{baseline: []}", train=train)
    assert batches(file, devices="1,2", strong=True) == [(1, 1, 4, 4), (2, 1, 2, 4)]
    with pytest.raises(ScenarioError, match=r"4 cannot be divided by .* 3 devices"):
        batches(file, devices="1,3", strong=True)


def test_devices_that_the_file_sets_or_sweeps_are_those_of_the_command_line(tmp_path: Path) -> None:
    file = write_nulls(
        tmp_path,
        stacks="{baseline: []}",
        resources="{devices: 2}",
        train="{global_batch_size: 8}",
    )
    assert batches(file, devices="1,2") == [(1, 4, 1, 4), (2, 4, 1, 8)]
    file = write_nulls(tmp_path, stacks="{baseline: []}", sweep="{resources.devices: [1, 2]}")
    assert batches(file) == [(1, 1, 1, 1), (2, 1, 1, 2)]
    assert batches(file, devices="1,3") == [(1, 1, 1, 1), (3, 1, 1, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the numbers of devices: --devices 1,2,4"),
        (("--devices", "2,1"), "--devices 2,1: expected numbers that grow"),
        (("--devices", "0,1"), "--devices 0,1: expected"),
        (("--nodes", "one"), "--nodes one: expected"),
        (("--devices", "1,2", "--project", "2,8"), "2 is not more than the 2 devices"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = call("scaling", str(write_nulls(tmp_path)), *QUICK, *arguments)
    assert done.code == 2
    assert message in done.err


def test_points_are_interleaved_measured_and_shown_apart_from_estimates(tmp_path: Path) -> None:
    # Steps that sleep: on a busy machine two devices that do nothing may be slower than one.
    file = write_nulls(tmp_path, engine="{use: null, step_seconds: 0.05}")
    results = str(tmp_path / "results")
    arguments = ("scaling", str(file), "--devices", "1,2", "--rounds", "2", "--project", "8")
    arguments = (*arguments, "--results", results, *QUICK)
    done = call(*arguments)
    assert done.code == 0
    measured, _, estimated = done.out.partition("estimated, not measured")
    assert "baseline: weak scaling, each device's batch stays" in measured
    assert "paired within 2 rounds" in measured
    assert "serial share, an estimate by Gustafson's law" in " ".join(measured.split())
    assert "\n1 " in measured and "\n2 " in measured and "\n8 " not in measured
    assert "\n8 " in estimated
    listed = json.loads(call("results", "list", "--results", results, "--format", "json").out)
    order = [(row["round"], row["sweep"]["resources.devices"]) for row in listed]
    assert order == [(0, 1), (0, 2), (1, 2), (1, 1)]
    again = call(*arguments, "--resume", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(again.out)))
    assert [row["world_size"] for row in rows] == ["1", "2", ""]
    assert [row["estimated_at_world_size"] for row in rows] == ["", "", "8"]
    assert all(not row["tokens_per_second_median"] for row in rows[2:])
    document = json.loads(call(*arguments, "--resume", "--format", "json").out)
    (scaling,) = document["sections"]["sweep"]["scaling"]
    assert scaling["projections"][0]["estimated"] is True
    assert [point["figure"]["paired"] for point in scaling["points"]] == [False, True]


@pytest.mark.release
def test_a_real_model_scales_over_gloo(tmp_path: Path) -> None:
    file = tmp_path / "gloo.yaml"
    file.write_text(
        "name: gloo\nmodel: {id: tiny-llama-cpu, weights: random}\n"
        "data: {use: synthetic, sequence_length: 64}\ntrain: {micro_batch_size: 2}\n"
        "resources: {device: cpu, threads: 1}\n"
        "measure: {warmup: 1, steps: 4, rounds: 1, phase_steps: 0}\n",
        encoding="utf8",
    )
    arguments = ("scaling", str(file), "--devices", "1,2", "--strong", "-q", "--oversubscribe")
    done = call(*arguments, "--results", str(tmp_path / "results"), "--format", "json")
    assert done.code == 0
    document = json.loads(done.out)
    (scaling,) = document["sections"]["sweep"]["scaling"]
    assert scaling["kind"] == "strong"
    assert [point["figure"]["world_size"] for point in scaling["points"]] == [1, 2]
    assert scaling["points"][1]["figure"]["ratio"]["median"] > 0
    assert scaling["serial_share"]["law"] == "Amdahl"
    used = [row["effective"]["backend"] for row in document["experiments"]]
    assert used[1] == "gloo"
