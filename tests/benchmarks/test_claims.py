"""Claims about stacks on a GPU: what was measured is held against its goal, or is said to miss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_factory import make_experiment, make_rank, make_result
from gpu_factory import gpu_run

from accel_bench.errors import AccelBenchError
from accel_bench.result import Metric, Result

ROOT = Path(__file__).resolve().parents[2]

H100 = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "uuid": "aaaa"}
H200 = {**H100, "name": "NVIDIA H200"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks` is no part of the distribution."""
    monkeypatch.syspath_prepend(str(ROOT))


def rounds(  # noqa: PLR0917 - what a test may say of runs
    stack: str,
    seconds: Sequence[float],
    peak: float = 60e9,
    device: Any = H100,
    steps: int = 20,
    losses: Sequence[float] | None = None,
    session: str = "monday",
) -> list[Result]:
    """Runs of a stack of which a step of 100 tokens takes `seconds`, one for each round."""
    scenario = {"name": "single-gpu-full", "measure": {"steps": steps}}
    experiment = make_experiment(stack, scenario=scenario)
    allocated = Metric(
        name="peak_memory_bytes",
        figure="peak_memory",
        value=peak,
        unit="bytes",
        scope="rank",
        kind="allocated",
    )
    return [
        make_result(
            experiment,
            round=number,
            session=session,
            ranks=[
                make_rank(step_seconds=(step, step), device=device, losses=losses).model_copy(
                    update={"metrics": (allocated,)}
                )
            ],
        )
        for number, step in enumerate(seconds)
    ]


def claim(results: Sequence[Result], **goal: Any) -> Any:
    """What is claimed of a goal after these runs."""
    from benchmarks.claims import claim_of
    from benchmarks.goals import Goal

    facts = {"work": "single-gpu-full", "stack": "fused", "baseline": "eager", **goal}
    return claim_of(Goal.model_validate(facts), results)


EAGER = rounds("eager", [0.2] * 5)


@pytest.mark.parametrize(("goal", "met"), [(900.0, True), (1100.0, False)])
def test_a_speed_is_held_against_its_goal(goal: float, met: bool) -> None:
    runs = [*EAGER, *rounds("fused", [0.1] * 5)]
    found = claim(runs, metric="tokens_per_second", goal=goal, device="H100")
    assert found.value == pytest.approx(1000)
    assert (found.unit, found.met, found.date) == ("tokens/s", met, "2026-01-01")
    assert (found.device, found.loss, found.status) == (H100["name"], "bitwise equal", "ok")


def test_figures_that_are_no_ratio_are_an_h100_s_and_say_whose() -> None:
    from benchmarks.goals import GOALS

    absolute = [goal for goal in GOALS if not goal.metric.endswith("ratio")]
    assert {goal.device for goal in absolute} == {"H100"}
    assert all("H100" in goal.anchor for goal in absolute)
    speeds = {(one.work, one.goal) for one in absolute if one.metric == "tokens_per_second"}
    assert speeds >= {("single-gpu-lora", 17_400.0), ("single-gpu-lora-8b", 12_472.87)}


def test_no_figure_of_an_h100_is_closed_on_an_h200_and_the_report_quotes_it() -> None:
    """However fast it is there: the table is the first one of that card."""
    from benchmarks.claims import claim_of, report_of
    from benchmarks.goals import GOALS

    stacks = ("eager", "fused-loss-compiled")
    runs = [one for name in stacks for one in rounds(name, [1e-4] * 5, peak=1e9, device=H200)]
    goals = [goal for goal in GOALS if goal.work == "single-gpu-full" and goal.anchor]
    claims = [claim_of(goal, runs) for goal in goals]
    assert {(one.met, one.reason) for one in claims} == {(None, "the goal is for an H100")}
    assert min(one.value or 0 for one in claims if one.unit == "tokens/s") > 1e5
    report = report_of("eager", runs, claims, None)
    assert "Table of NVIDIA H200." in report
    assert "on one H100 (open: the goal is for an H100)" in report


def test_a_fast_stack_that_learns_something_else_has_not_reached_its_goal() -> None:
    runs = [*EAGER, *rounds("fused", [0.1] * 5, losses=[2.0, 9.0, 9.0])]
    found = claim(runs, metric="tokens_per_second", goal=900.0)
    assert (found.met, found.loss) == (False, "different")
    words = "reached, but the training is different (its loss differs by up to "
    assert found.reason.startswith(words)


def test_the_report_says_how_far_a_stack_s_own_runs_are_apart() -> None:
    from benchmarks.claims import repeat_line

    first, *others = rounds("eager", [0.2] * 3, losses=[2.0, 2.0, 2.0])
    again = rounds("eager", [0.2], losses=[2.0, 2.2, 2.0])
    told = repeat_line([first, *others, *again])
    assert told == "- `eager`: losses of its 4 runs differ by up to 3.33 %"
    assert "no two runs" in repeat_line([first])
    assert "no two runs" in repeat_line(rounds("eager", [0.2] * 2, losses=[None, 1, 1]))


@pytest.mark.parametrize(
    ("changes", "goal", "reason"),
    [
        ({"device": H200}, {"device": "H100"}, "the goal is for an H100"),
        ({}, {"device": "H200"}, "the goal is for an H200"),
        ({"device": {"type": "cpu", "name": "cpu"}}, {}, "the goal is for a GPU"),
        ({"seconds": [0.1] * 4}, {}, "4 of 5 rounds"),
        ({"steps": 3}, {}, "3 of 20 steps"),
    ],
)
def test_what_is_not_measured_as_the_goal_asks_is_reported_and_not_judged(
    changes: dict[str, Any], goal: dict[str, Any], reason: str
) -> None:
    runs = [*EAGER, *rounds(**{"stack": "fused", "seconds": [0.1] * 5, **changes})]
    found = claim(runs, metric="tokens_per_second", goal=900.0, **goal)
    assert (found.met, found.reason) == (None, reason)
    assert found.value == pytest.approx(1000)


def test_of_two_experiments_with_a_stack_s_name_the_last_alone_counts() -> None:
    earlier = rounds("fused", [0.01] * 5, peak=1e9, steps=3)
    later = rounds("fused", [0.1] * 5, peak=60e9, session="tuesday")
    runs = [*rounds("eager", [0.2] * 5, session="tuesday"), *earlier, *later]
    speed = claim(runs, metric="tokens_per_second", goal=900.0)
    assert (speed.value, speed.met) == (pytest.approx(1000), True)
    assert claim(runs, metric="peak_allocated_bytes", goal=64e9, at_most=True).value == 60e9


def test_a_ratio_is_taken_over_its_own_comparator_in_the_same_rounds() -> None:
    slow, fast = [0.30, 0.20, 0.31, 0.29, 0.30], [0.15, 0.10, 0.155, 0.145, 0.15]
    runs = [*rounds("eager", [1.0] * 5), *rounds("liger", slow), *rounds("fused", fast)]
    found = claim(runs, metric="speed_ratio", baseline="liger", goal=1.9)
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)
    assert (found.met, found.loss) == (True, "bitwise equal")


def test_memory_is_what_tensors_held_and_less_is_better() -> None:
    runs = [*rounds("eager", [0.1] * 5, peak=80e9), *rounds("fused", [0.1] * 5, peak=60e9)]
    absolute = claim(runs, metric="peak_allocated_bytes", goal=64.22e9, at_most=True)
    assert (absolute.value, absolute.met) == (60e9, True)
    ratio = claim(runs, metric="peak_allocated_ratio", baseline="eager", goal=0.70, at_most=True)
    assert (ratio.value, ratio.met) == (pytest.approx(0.75), False)


def test_what_was_not_run_has_no_value_and_says_so() -> None:
    found = claim(rounds("fused", [0.1] * 5), metric="speed_ratio", baseline="liger", goal=1.0)
    assert (found.value, found.met, found.reason) == (None, None, "no run of liger")


def test_every_goal_is_about_stacks_of_a_scenario_and_has_one_unit() -> None:
    from benchmarks.goals import GOALS, UNITS

    folders = ROOT.glob("plugins/*/*/sample_configurations/scenarios")
    shipped = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    for goal in GOALS:
        written = yaml.safe_load(shipped[goal.work].read_text())
        assert {goal.stack, goal.baseline} <= set(written["stacks"])
        assert goal.metric in UNITS
        assert all(value in written["sweep"][key] for key, value in goal.sweep.items())


def test_a_work_is_published_with_scenario_samples_report_and_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import claims

    file = tmp_path / "it.yaml"
    file.write_text("name: single-gpu-full\nbaseline: eager\n")
    monkeypatch.setattr(claims, "find_presets", lambda kind: {"single-gpu-full": file})
    runs = [*rounds("eager", [0.2] * 5), *rounds("fused-compiled", [0.1] * 5)]
    claims.publish("single-gpu-full", runs, tmp_path / "out", None)
    assert (tmp_path / "out" / "scenario.yaml").read_text() == file.read_text()
    samples = json.loads((tmp_path / "out" / "samples.json").read_text())
    assert len(samples) == 10
    assert samples[0]["ranks"][0]["window"]["samples"][0]["seconds"] == 0.2
    assert not {"command", "folder", "log_tail"} & set(samples[0])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    keys = "work metric value unit goal met low high baseline device date".split()
    assert all(set(keys) <= set(row) for row in summary)
    over_eager = [row for row in summary if row["baseline"] == "eager"]
    assert any(row["value"] == pytest.approx(2.0) for row in over_eager)
    report = (tmp_path / "out" / "report.md").read_text()
    assert "No floor." in report
    assert "| fused-compiled | speed_ratio | eager | 2 |" in report


def test_a_work_whose_scenario_is_not_installed_is_refused(tmp_path: Path) -> None:
    from benchmarks import claims

    with pytest.raises(AccelBenchError, match="'no-such-work' is not installed"):
        claims.publish("no-such-work", rounds("eager", [0.2]), tmp_path, None)


def test_the_floor_is_products_and_optimizer_over_measured_rates() -> None:
    from benchmarks.claims import summary_of
    from benchmarks.floor import Rates, floor_line, floor_seconds

    run = gpu_run()
    rank = run.ranks[0]
    effective = rank.effective.model_copy(update={"trained_dtypes": {"bfloat16": 10**9}})
    run = run.model_copy(update={"ranks": (rank.model_copy(update={"effective": effective}),)})
    (row,) = summary_of("x", run.experiment.stack.name, [run]).experiments
    rates = Rates(
        device="H100",
        matmul_flops_per_second=600e12,
        copy_bytes_per_second=3e12,
        matmul_samples=(600e12,),
        copy_samples=(3e12,),
    )
    products, moved = floor_seconds(row, rates) or (0.0, 0.0)
    assert products == pytest.approx(6 * 1e9 * 8192 / 600e12)
    assert moved == pytest.approx(7 * 2 * 1e9 / 3e12)
    assert "floor 86.6 ms" in floor_line(row, rates)


def test_the_rates_of_this_machine_are_positive_and_have_samples() -> None:
    from benchmarks.floor import measure_rates

    rates = measure_rates("cpu", small=True)
    assert min(*rates.matmul_samples, *rates.copy_samples) > 0
    assert min(rates.copy_samples) <= rates.copy_bytes_per_second <= max(rates.copy_samples)
