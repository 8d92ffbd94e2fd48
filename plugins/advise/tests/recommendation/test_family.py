"""Recommendations for a family: a row for each stored model, mode and device."""

from __future__ import annotations

from typing import Any

import pytest
from accel_bench_advise.recommendation.candidates import Stored
from accel_bench_advise.recommendation.family import FamilyRecommendation, recommend_family
from accel_bench_advise.recommendation.schema import Mode, RecommendRequest
from accel_bench_advise.recommendation.view import family_report
from recommendation_factory import experiment, in_turn, runs
from serving_factory import serving

from accel_bench.errors import ScenarioError
from accel_bench.report.formats import render_report
from accel_bench.result import Result
from accel_bench.store.sessions import SessionRecord

FAMILY, MODEL = "text-generation", "tiny-llama-cpu"
H100 = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-9"}
SESSIONS = {
    name: SessionRecord(
        id=name,
        started_at="2026-01-01",
        scenario="unnamed",
        document={"scenario": {"baseline": baseline}},
    )
    for name, baseline in (("monday", "baseline"), ("tuesday", "baseline"), ("friday", "base"))
}


def trained() -> list[Result]:
    """Runs of two stacks on an L4 and on an H100."""
    return [
        *in_turn(runs(experiment("baseline")), runs(experiment("fast"), 1.25)),
        *in_turn(
            runs(experiment("baseline"), 3.0, device=H100, session="tuesday"),
            runs(experiment("fast"), 2.0, device=H100, session="tuesday"),
        ),
    ]


def served() -> list[Result]:
    """Runs of two servers at a rate."""
    return in_turn(serving("base", 100, session="friday"), serving("soon", 50, session="friday"))


def ask(
    modes: tuple[Mode, ...] = ("train", "inference"), family: str = FAMILY, **request: Any
) -> FamilyRecommendation:
    """Return the recommendation for a family with stored runs of one model."""
    results: dict[str, list[Result]] = {"train": trained(), "inference": served()}

    def stored(asked: RecommendRequest) -> Stored:
        assert asked.model == MODEL
        return Stored(results[asked.mode], SESSIONS)

    asked = RecommendRequest(model=family, **request)
    return recommend_family(asked, modes, {MODEL, "some/hub-model"}, stored)


def test_each_model_is_answered_by_mode_and_by_device() -> None:
    document = ask()
    found = [
        (row.mode, row.device, row.recommended and row.recommended.stack, row.fastest)
        for row in document.rows
    ]
    assert found == [
        ("train", "h100-sxm", "baseline", True),
        ("train", "l4", "fast", False),
        ("inference", document.rows[2].device, "soon", True),
    ]
    assert [row.runner_up for row in document.rows] == ["fast", "baseline", "base"]
    assert document.rows[0].settings["train.learning_rate"] is not None
    assert document.rows[2].settings["inference.rate"] == 4.0
    assert "for training with tiny-llama-cpu use baseline on h100-sxm" in document.answer
    assert "for inference with tiny-llama-cpu use soon on " in document.answer
    assert MODEL not in document.not_stored and "gpt2" in document.not_stored


def test_rows_of_another_device_are_left_out_and_said() -> None:
    document = ask(("train",), gpu="l4")
    (row,) = document.rows
    assert (row.device, row.fastest) == ("l4", True)
    (other,) = document.left_out
    assert other.text() == f"{MODEL}: rows of h100-sxm: another device than l4"
    nothing = ask(("train",), gpu="t4")
    assert nothing.rows == ()
    assert nothing.answer.startswith("Not tested: nothing that is stored of text-generation")


def test_a_job_of_tokens_leaves_out_requests_at_a_rate_and_answers_the_rest() -> None:
    document = ask(tokens=1e9)
    assert {row.mode for row in document.rows} == {"train"}
    assert document.rows[0].recommended is not None
    (other,) = document.left_out
    assert other.text().startswith(f"{MODEL}: the stored requests: they arrive at a rate")


def test_what_may_not_be_recommended_says_why() -> None:
    document = ask(("inference",), at_most={"request_latency_p99": 1.0})
    (row,) = document.rows
    assert (row.certainty, row.recommended, row.fastest) == ("not tested", None, False)
    assert "request_latency_p99 may be 1 at most" in row.why


def test_people_read_a_table_of_both_modes() -> None:
    text = " ".join(render_report(family_report(ask()), "markdown").split())
    for words in ("times as fast", "median request", "h100-sxm", "measured with", "llama-2-70b"):
        assert words in text
    assert "train.learning_rate=" in text


def test_a_misspelt_family_is_named() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'text-encoder'"):
        ask(family="text-encoders")
