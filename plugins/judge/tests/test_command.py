"""The command: its scenario, its verdicts and exit codes."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from accel_bench_judge.document import judge_report
from accel_bench_judge.scenario import ENGINE, judge_scenario
from analysis_factory import make_experiment, make_rank, make_result, make_summary

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import find_drafts
from accel_bench.testing import run_program

PAGE = Path(__file__).parents[3] / "docs" / "judge.md"
FOR_PROGRAMS = PAGE.read_text().partition("## For a program")[2].partition("\n## ")[0]


def test_the_files_of_the_page_are_judged(tmp_path: Path) -> None:
    for source in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        name = re.match(r"# (\w+\.py)", source)
        assert name
        (tmp_path / name[1]).write_text(source)
    (tmp_path / "half.py").write_text(
        "import reference\n"
        "def step(model, optimizer, batch):\n"
        "    half = {name: one[:16] for name, one in batch.items()}\n"
        "    return reference.step(model, optimizer, half)\n"
    )
    arguments = ("judge", "reference.py", "candidate.py", "half.py", "--rounds", "1")
    ended = run_program(*arguments, "--steps", "3", "--format", "json", "--quiet", folder=tmp_path)
    assert ended.returncode == 1, ended.stderr
    reference, candidate, half = json.loads(ended.stdout)["steps"]
    assert (reference["update"], reference["confined"]) == ("bitwise equal", True)
    assert candidate["update"] in ("bitwise equal", "equivalent")
    assert candidate["training"] == candidate["update"]
    known = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`.*?) \|", FOR_PROGRAMS, re.M)))
    assert len(known) > 12 and set(known) <= candidate.keys()
    assert (candidate["status"], candidate["flops"]) == ("ok", candidate["flops_of_reference"])
    assert half["status"] == "invalid"
    assert "the reference's" in half["reasons"][0]


SIGNATURE = "make_model = make_batch = make_optimizer = step = print\n"


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(SIGNATURE)
    return [folder / name for name in names]


def scenario(reference: Path, *candidates: Path) -> dict[str, Any]:
    return judge_scenario(reference, candidates, steps=3, rounds=1, fewer_flops=False)


def test_candidates_of_one_name_are_called_by_their_folders_too(tmp_path: Path) -> None:
    names = ("reference.py", "a/step.py", "b/step.py", "b/my step.py", "b/_.py")
    reference, *others = files(tmp_path, *names)
    found = scenario(reference, *others)
    assert list(found["stacks"]) == ["reference", "a-step", "b-step", "b-my-step", "b-_"]
    (planned, *_) = find_drafts([found])
    make_plan(planned, read_machine(), PlanRequest())  # which accepts the names


def test_a_candidate_called_reference_is_told_apart(tmp_path: Path) -> None:
    reference, other = files(tmp_path, "reference.py", "other/reference.py")
    assert list(scenario(reference, other)["stacks"]) == ["reference", "other-reference"]


def test_a_missing_file_and_a_file_given_twice_are_errors(tmp_path: Path) -> None:
    reference, one = files(tmp_path, "reference.py", "one.py")
    with pytest.raises(ScenarioError, match="no file"):
        scenario(reference, tmp_path / "none.py")
    with pytest.raises(ScenarioError, match="twice"):
        scenario(reference, one, one)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def prepare(model, optimizer): pass", "defines no function step"),
        ("if True:\n    from elsewhere import step", ""),
        ("from elsewhere import *", ""),
        ("def step(:", "no Python file"),
        ("\0", "no Python file"),
    ],
)
def test_a_candidate_without_a_step_is_refused_before_anything_starts(
    source: str, message: str, tmp_path: Path
) -> None:
    reference, one = files(tmp_path, "reference.py", "one.py")
    one.write_text(source)
    context = pytest.raises(ScenarioError, match=message) if message else nullcontext()
    with context:
        scenario(reference, one)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["better", "better"], 0),
        (["better", "same"], 4),
        (["worse", "inconclusive"], 4),
        (["better", "not tested"], 5),
        (["worse", "invalid"], 1),
    ],
)
def test_the_exit_code_is_that_of_the_worst_candidate(outcomes: list[str], code: int) -> None:
    from accel_bench_judge.document import JudgedStep, exit_code_of

    from accel_bench.result import Status

    steps = [
        JudgedStep(
            step=outcome,
            status=Status.INVALID if outcome == "invalid" else Status.OK,
            runs=5,
            verdict="not tested" if outcome == "invalid" else outcome,
        )
        for outcome in outcomes
    ]
    reference = JudgedStep(step="reference", status=Status.OK, runs=5, is_reference=True)
    assert exit_code_of([reference, *steps]) == code


def test_a_step_that_is_fast_in_the_rounds_that_it_did_not_break_is_refused() -> None:
    from accel_bench_judge.document import JudgedStep, exit_code_of
    from accel_bench_judge.view import _verdict

    from accel_bench.result import Status

    broken = JudgedStep(
        step="lucky", status=Status.DEGRADED, runs=3, failed_runs=2, verdict="better"
    )
    assert (exit_code_of([broken]), _verdict(broken)) == (1, "failed")


def test_the_gaps_of_a_confinement_stand_under_the_table() -> None:
    from accel_bench_judge.document import JudgedStep
    from accel_bench_judge.view import _reasons

    from accel_bench.result import Status

    step = JudgedStep(
        step="one", status=Status.OK, runs=5, confined=False, unconfined=("use sockets",)
    )
    assert _reasons(step) == ["on this kernel the step's process could use sockets"]


def test_all_rounds_decide_on_the_update() -> None:
    experiment = make_experiment("candidate")
    distances = (1e-6, 3e-6, 2e-6)
    results = []
    for number, distance in enumerate(distances):
        made = {
            "training": "equivalent" if number == 1 else "bitwise equal",
            "distance": distance,
            "allowed": 2 * distance,
            "flops": 99.0 + number,
            "reference_flops": 100.0,
            "unconfined": ["shorten files"] if number == 0 else [],
        }
        rank = make_rank().model_copy(update={"evidence": {ENGINE: {"judgement": made}}})
        results.append(make_result(experiment, round=number, ranks=[rank]))
    summary = make_summary([experiment], results, baseline="candidate")
    (step,) = judge_report(summary, "reference.py").steps
    assert (step.update, step.distance, step.allowed) == ("equivalent", 3e-6, 6e-6)
    assert (step.flops, step.unconfined) == (99.0, ("shorten files",))
    plain = make_summary([experiment], [make_result(experiment)], baseline="candidate")
    assert "judgements" not in plain.sections
    assert judge_report(plain, "reference.py").steps[0].update == "not tested"


def test_a_warm_up_of_unknown_length_is_refused(tmp_path: Path) -> None:
    reference, one = files(tmp_path, "reference.py", "one.py")
    (draft,) = find_drafts([scenario(reference, one)])
    asked = PlanRequest(overrides=(("measure.warmup", "auto"),))
    plan = make_plan(draft, read_machine(), asked)
    assert all("set measure.warmup to a number" in one.skipped[0] for one in plan.planned)
