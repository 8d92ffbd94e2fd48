"""Verdicts on reproductions by ratios: reproduced, not reproduced, or inconclusive."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_share.reproduction import (
    Reproduction,
    differences,
    facts,
    judge_bundle,
    plugins_of,
    reproduction_report,
)
from accel_bench_share.stack_reproduction import StackReproduction, summarize_results
from analysis_factory import make_experiment, make_failures, make_rank, make_result, make_rounds
from store.store_factory import MACHINE

from accel_bench.analysis.device_kinds import device_models
from accel_bench.analysis.quantity import compared_by
from accel_bench.report.formats import render_report
from accel_bench.result import PluginVersion, Result, Status
from accel_bench.scenario.uses import DataUse

LORA, FAST = make_experiment("lora"), make_experiment("fast")

QUIET = (0.1000, 0.1003, 0.0998, 0.1001, 0.0999)
NOISY = (0.100, 0.112, 0.094, 0.105, 0.091)


def session(factor: float, seconds: Sequence[float] = QUIET, rounds: int = 5) -> list[Result]:
    """A baseline, and a stack with `factor` times its seconds and separate noise."""
    own = [factor * one for one in (*seconds[1:], seconds[0])]
    return [*make_rounds(LORA, seconds[:rounds]), *make_rounds(FAST, own[:rounds])]


def judged(there: list[Result], here: list[Result], **changes: Any) -> Reproduction:
    return judge_bundle("a.zip", "0" * 64, there, summarize_results(here, "lora"), here, **changes)


def fast(found: Reproduction) -> StackReproduction:
    return next(row for row in found.stacks if row.stack == "fast")


@pytest.mark.parametrize(
    ("there", "here", "verdict", "reason"),
    [
        (session(0.8), session(0.8), "holds", "within 5 %"),
        (session(0.8), session(0.82), "holds", "within 5 %"),
        (session(1.0), session(1.0), "holds", "within 5 %"),
        (session(0.5, NOISY), session(0.52, NOISY), "holds", "the same direction"),
        (session(0.8), session(0.95), "does not hold", "0.842 [0.838, 0.846] times the bundle's"),
        (session(0.8), session(1.25), "does not hold", "times the bundle's"),
        (session(0.9, NOISY), session(0.9, NOISY), "inconclusive", "more --rounds narrow"),
        (session(0.8), session(0.8, rounds=1), "inconclusive", "--rounds 5"),
    ],
)
def test_a_ratio_is_compared_with_its_interval(
    there: list[Result], here: list[Result], verdict: str, reason: str
) -> None:
    found = judged(there, here)
    row = fast(found)
    assert (row.verdict, found.verdict) == (verdict, verdict)
    assert reason in row.reason
    assert row.change is not None
    assert found.exit_code == {"holds": 0, "does not hold": 4, "inconclusive": 5}[verdict]


def test_a_small_claim_that_turns_round_is_not_reproduced() -> None:
    """Even with ratios within 5 % of one another."""
    row = fast(judged(session(0.985), session(1.01)))
    assert row.claim == "faster"
    assert (row.verdict, row.reason.split(",")[1]) == (
        "does not hold",
        " and here it is the opposite",
    )


def test_absolute_speeds_are_compared_on_one_device_model_alone() -> None:
    there = session(0.8)
    found = judged(there, [run for run in session(0.8, [3 * one for one in QUIET])])
    row = fast(found)
    assert found.same_device
    assert row.speed_change is not None and row.speed_change.median == pytest.approx(
        1 / 3, rel=0.01
    )
    assert row.verdict == "holds"  # a slower machine says nothing about the ratio
    gpu = make_rank(device={"type": "cuda", "name": "NVIDIA L4"})
    found = judged(there, [run.model_copy(update={"ranks": (gpu,)}) for run in there])
    assert (found.same_device, found.devices_there, found.devices_here) == (
        False,
        ("a CPU",),
        ("NVIDIA L4",),
    )
    assert [row.speed_change for row in found.stacks] == [None, None]


def test_a_ratio_of_memory_says_so_and_leaves_speeds_their_own() -> None:
    def by_memory(runs: list[Result]) -> list[Result]:
        return [compared_by(run, "peak_memory_bytes") for run in runs]

    found = judged(by_memory(session(0.8)), by_memory(session(0.8, [3 * one for one in QUIET])))
    row = fast(found)
    assert (row.compared, row.claim, row.verdict) == ("peak_memory_bytes", "same", "holds")
    assert row.change is not None and row.change.median == 1.0
    assert row.speed_change is not None and row.speed_change.median == pytest.approx(
        1 / 3, rel=0.01
    )
    assert "ratios are those of peak_memory_bytes" in render_report(
        reproduction_report(found), "table"
    )
    mixed = fast(judged(session(0.8), by_memory(session(0.8))))
    assert mixed.verdict == "inconclusive"
    assert mixed.reason.startswith("one is compared by tokens_per_second, the other one by peak")


def test_a_cpu_is_named_by_its_processor() -> None:
    rank = make_rank(device={"type": "cpu", "name": "cpu"})
    run = make_result(ranks=[rank]).model_copy(update={"machine": MACHINE})
    assert device_models([run]) == ("a CPU",)
    assert device_models([make_result(ranks=[rank])]) == ("cpu",)


def test_the_baseline_has_no_verdict() -> None:
    found = judged(make_rounds(LORA, QUIET), make_rounds(LORA, QUIET))
    (row,) = found.stacks
    assert (row.is_baseline, row.verdict, row.change) == (True, None, None)
    assert (found.verdict, found.exit_code) == ("inconclusive", 5)


def test_a_stack_that_fails_here_is_not_judged() -> None:
    there = session(0.8)
    here = [*make_rounds(LORA, QUIET), *make_failures(FAST, Status.OOM)]
    found = judged(there, here)
    assert (fast(found).verdict, fast(found).reason) == ("inconclusive", "it ended as oom here")
    assert found.exit_code == 1
    found = judged(there, make_rounds(LORA, QUIET))
    assert fast(found).reason == "it was not run here"
    assert found.exit_code == 5
    found = judged([*make_rounds(LORA, QUIET), *make_failures(FAST, Status.OOM)], there)
    assert fast(found).reason == "the bundle has no ratio of it"


def test_another_training_is_not_a_reproduction() -> None:
    other = [
        run.model_copy(
            update={"ranks": (make_rank(step_seconds=(0.08, 0.08), losses=(2, 1, 0.1)),)}
        )
        for run in make_rounds(FAST, QUIET)
    ]
    found = judged(session(0.8), [*make_rounds(LORA, QUIET), *other])
    assert fast(found).verdict == "does not hold"
    assert fast(found).reason.startswith("here alone it trains differently: its loss differs")


def test_versions_and_hardware_that_differ_are_listed() -> None:
    other = MACHINE.model_copy(
        update={"versions": {"torch": "2.14.0"}, "cores": 8, "driver": "570"}
    )
    plugins = plugins_of(session(0.8))
    assert [one.name for one in plugins] == ["lora"]
    moved = [PluginVersion(name="lora", distribution="accel-bench", version="0.2.0")]
    found = differences(facts(MACHINE, plugins), facts(other, moved))
    assert {one.key: (one.a, one.b) for one in found} == {
        "cores": (4, 8),
        "torch": ("2.13.0", "2.14.0"),
        "accel-bench": ("0.1.0", "0.2.0"),
        "driver": (None, "570"),
    }


def test_honest_repetitions_are_seldom_called_not_reproduced() -> None:
    """Of 40 repetitions of a true 1.25 times, at noise of 5 %, at most one is; half settle."""
    luck = random.Random(0)

    def noisy() -> list[Result]:
        base, own = (
            [value * luck.gauss(1, 0.05) for value in itertools.repeat(scale, 5)]
            for scale in (0.1, 0.08)
        )
        return [*make_rounds(LORA, base), *make_rounds(FAST, own)]

    verdicts = Counter(fast(judged(noisy(), noisy())).verdict for _ in range(40))
    assert verdicts["does not hold"] <= 1
    assert verdicts["holds"] >= 20


def test_other_work_is_no_repetition() -> None:
    """Other devices, windows and paths are; settings that `--set` has changed are not."""
    there = session(0.8)
    longer = [
        run.model_copy(
            update={
                "experiment": run.experiment.model_copy(
                    update={
                        "scenario": run.experiment.scenario.model_copy(
                            update={"data": DataUse(use="text", sequence_length=256)}
                        )
                    }
                )
            }
        )
        for run in there
    ]
    row = fast(judged(there, longer))
    assert row.verdict == "inconclusive"
    assert "other work was run here: data.use synthetic -> text" in row.reason
    assert "data.sequence_length 110 -> 256" in row.reason
