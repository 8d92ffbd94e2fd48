"""Recommendations over devices: hours, dollars, limits, and missing evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.price_table import Price, PriceEntry
from accel_bench_advise.recommendation.candidate_rows import memory_words
from accel_bench_advise.recommendation.candidates import Stored, training_of
from accel_bench_advise.recommendation.recommender import Recommender, check_request
from accel_bench_advise.recommendation.schema import MemoryUse, Recommendation, RecommendRequest
from accel_bench_advise.recommendation.view import recommend_report
from analysis_factory import WEEK, make_experiment
from recommendation_factory import experiment, in_turn, runs
from serving_factory import serving

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Device
from accel_bench.planning.resolve import resolve
from accel_bench.report.formats import render_report
from accel_bench.result import Provenance, Result, Status
from accel_bench.scenario.find import read_draft
from accel_bench.store.sessions import SessionRecord

H100 = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-9"}
TOKENS = 8e8
"""Tokens of a million steps: 22.2 hours with the L4's faster stack."""


def price(device: str, usd: float) -> PriceEntry:
    row = Price(
        provider="here",
        instance=f"one-{device}",
        region="",
        device=device,
        devices=1,
        usd_per_hour=usd,
        source="a test",
        date="2026-11-01",
    )
    return PriceEntry(row, own=True)


PRICES = (price("l4", 1.0), price("h100-sxm", 4.0))
"""Prices of an L4 and of an H100, which is three times as fast and four times as dear."""


def sessions() -> dict[str, SessionRecord]:
    """Two sessions with their commands."""
    document: dict[str, Any] = {"scenario": {"stacks": {"baseline": {}, "fast": {}}}}
    return {
        name: SessionRecord(
            id=name,
            started_at="2026-01-01",
            scenario="unnamed",
            command=(
                *("/bin/accel-bench", "run", "work.yaml", "--rounds", "3", "--only=fast", "-q"),
                *("--race", "--format", "json"),
            ),
            document=document,
        )
        for name in ("monday", "tuesday")
    }


def stored() -> list[Result]:
    """Runs of two stacks on an L4 and on an H100."""
    on_l4 = in_turn(runs(experiment("baseline")), runs(experiment("fast"), 1.25))
    on_h100 = in_turn(
        runs(experiment("baseline"), 3.0, device=H100, session="tuesday"),
        runs(experiment("fast"), 3.3, device=H100, session="tuesday"),
    )
    return [*on_l4, *on_h100]


def ask(results: Sequence[Result] = (), **request: Any) -> Recommendation:
    """Return the recommendation from stored runs alone."""
    asked = RecommendRequest(model="tiny-llama-cpu", **request)
    check_request(asked)
    return Recommender(asked, Stored(results, sessions()), PRICES, None).answer()


def left_out(document: Recommendation) -> list[str]:
    """Return the rows that are no evidence, with reasons, as JSON has them."""
    texts: list[str] = document.model_dump(mode="json")["left_out"]
    return texts


def test_a_row_is_never_carried_to_another_device() -> None:
    document = ask(stored(), gpu="l4")
    assert document.recommended is not None and document.recommended.device == "l4"
    assert all(one.row.device == "l4" for one in document.others)
    assert left_out(document) == ["rows of h100-sxm: another device than l4"]
    nothing = ask(stored(), gpu="t4")
    assert (nothing.certainty, nothing.offer, nothing.recommended) == ("not tested", None, None)
    assert nothing.answer.startswith("Not tested: nothing that is stored of tiny-llama-cpu")


def test_without_limits_the_fastest_device_within_limits_the_cheapest() -> None:
    fastest = ask(stored())
    assert fastest.offer is not None and fastest.offer.device == "h100-sxm"
    cheapest = ask(stored(), budget_usd=25.0, tokens=TOKENS)
    assert cheapest.offer is not None and cheapest.offer.device == "l4"
    assert cheapest.offer.hours is not None and cheapest.offer.usd is not None
    assert cheapest.offer.hours.low < TOKENS / 10_000 / 3600 < cheapest.offer.hours.high
    assert cheapest.offer.usd == cheapest.offer.hours, "at a dollar an hour"
    assert "The budget is kept." in cheapest.answer
    soon = ask(stored(), deadline_hours=10.0, tokens=TOKENS)
    assert soon.offer is not None and soon.offer.device == "h100-sxm"
    assert [one.within_deadline for one in soon.offers] == ["does not hold", "holds"]


def test_limits_that_nothing_keeps_are_not_kept() -> None:
    document = ask(stored(), budget_usd=1.0, deadline_hours=1.0, tokens=TOKENS)
    assert document.offer is None
    assert document.answer.startswith("Cannot: nothing that is stored or estimated")
    assert [one.within_budget for one in document.offers] == ["does not hold"] * 2
    assert document.certainty == "not tested" and document.recommended is None
    assert [one.outcome for one in document.others] == ["best, over the limits", "runner-up"]
    best = document.others[0]
    assert best.why.startswith("The job takes ") and best.why.endswith(
        "The budget is not kept and the deadline is not kept."
    )


def test_a_budget_without_a_price_cannot_be_judged_and_the_best_stays_in_the_table() -> None:
    unpriced = Recommender(
        RecommendRequest(model="tiny-llama-cpu", budget_usd=1e6, tokens=TOKENS),
        Stored(stored(), sessions()),
        (),
        None,
    ).answer()
    problems = [f"no price of {one.device} is known" for one in unpriced.offers]
    assert all(one.problem.startswith(problems[i]) for i, one in enumerate(unpriced.offers))
    assert unpriced.answer.startswith("It is open whether the budget is kept: no price of ")
    assert all(problem in unpriced.answer for problem in problems)
    fates = [(one.row.stack, one.outcome) for one in unpriced.others]
    assert fates == [("fast", "best, price not known"), ("baseline", "runner-up")]
    (notes,) = [one.notes for one in recommend_report(unpriced).sections[:1]]
    assert not any("estimated" in note for note in notes)


def test_one_run_keeps_no_limit_for_sure() -> None:
    single = [run for run in stored() if run.round == 0]
    limits = {"budget_usd": 1e6, "deadline_hours": 1e6, "tokens": TOKENS}
    document = ask(single, **limits)
    assert {(one.within_budget, one.within_deadline) for one in document.offers} == {
        ("inconclusive", "inconclusive")
    }
    assert "The budget may be kept and the deadline may be kept." in document.answer
    sure = ask(stored(), **limits)
    assert {(one.within_budget, one.within_deadline) for one in sure.offers} == {("holds", "holds")}


def test_without_a_price_the_deadline_has_a_sentence_of_its_own() -> None:
    request = RecommendRequest(model="tiny-llama-cpu", deadline_hours=1e6, tokens=TOKENS)
    document = Recommender(request, Stored(stored(), sessions()), (), None).answer()
    assert document.answer.endswith(" The deadline is kept.")


def test_memory_is_named_with_its_kind_and_whose_it_is() -> None:
    use = MemoryUse(peak_bytes=2**29, kind="rss", device_bytes=2**33, headroom=15 / 16)
    words = "512 MiB (resident memory of a process) of the host's 8.00 GiB"
    assert memory_words(use) == words
    on_gpu = use.model_copy(update={"kind": "reserved"})
    assert memory_words(on_gpu) == "512 MiB (reserved by torch) of the device's 8.00 GiB"


def test_lengths_choose_the_context_and_the_tokens() -> None:
    short = ask(stored(), lengths=(50,) * 99 + (4000,))
    assert short.lengths is not None
    assert short.lengths.sequence_length == 56 and short.tokens == 99 * 50 + 56
    assert short.recommended is not None, "the stored 110 tokens hold 95 % of the samples"
    assert any("the longest has 4,000" in text for text in short.advice)
    long = ask(stored(), lengths=(4000,))
    assert long.recommended is None
    assert "rows of 110 tokens: the job needs 4,000" in left_out(long)


def test_imported_runs_are_no_evidence_and_exported_ones_are_marked() -> None:
    imported = Provenance(origin="imported", file="old.csv", format="fms-acceleration")
    old = [run.model_copy(update={"provenance": imported}) for run in stored()[:10]]
    document = ask(old)
    assert document.recommended is None
    assert left_out(document) == ["10 runs of old.csv: imported, not measured here"]
    exported = Provenance(origin="exported", file="other.json")
    other = [run.model_copy(update={"provenance": exported}) for run in stored()[:10]]
    document = ask(other)
    assert document.recommended is not None
    assert document.recommended.evidence.origin == "exported"


def test_open_answers_come_with_the_command_and_without_minutes_that_nothing_planned() -> None:
    few = [run for run in stored()[:10] if run.round < 3]
    document = ask(few)
    assert document.certainty == "inconclusive"
    (more,) = document.next_runs
    assert more.command == "accel-bench run work.yaml -q --only fast --resume --rounds 5"
    assert (more.minutes, more.usd) == (None, None)
    assert ask(stored()[:10]).next_runs == ()


def test_batch_layouts_that_ran_one_after_another_are_to_be_interleaved() -> None:
    large = [
        run.model_copy(update={"started_at": f"{run.started_at[:14]}{30 + run.round}:00Z"})
        for place, speed in enumerate((0.9, 1.1, 1.0, 0.95, 1.05))
        for run in runs(experiment("baseline", 4), speed)[place : place + 1]
    ]
    document = ask([*in_turn(runs(experiment("baseline", 2))), *large])
    assert document.certainty == "inconclusive"
    (more,) = document.next_runs
    assert more.command == "accel-bench run work.yaml -q --resume --rounds 10 --interleave"
    assert "so that drift counts as difference" in more.why


def test_another_training_is_left_out_and_named() -> None:
    rate = {"learning_rate": 0.5}
    other = runs(experiment("baseline", **rate), 9.0, session="tuesday")
    alone = ask([*stored()[:10], *other])
    assert alone.kept["train.learning_rate"] == 1e-3, "a baseline alone is no comparison"
    fast = runs(experiment("fast", **rate), 9.9, session="tuesday")
    document = ask([*stored()[:10], *in_turn(other, fast)])
    assert document.recommended is not None
    assert document.kept["train.learning_rate"] == 0.5, "the newest"
    (note,) = left_out(document)
    assert "train.learning_rate=0.001" in note and "--where chooses" in note


def test_a_reason_why_many_rows_are_no_evidence_is_printed_once() -> None:
    others: list[Result] = []
    for rate, session in enumerate(WEEK[1:], 1):
        works = (experiment(name, learning_rate=0.1 * rate) for name in ("baseline", "fast"))
        others += in_turn(*(runs(work, 9.0, session=session) for work in works))
    document = ask([*stored()[:10], *others])
    assert len(left_out(document)) == len(WEEK) - 1
    (section, *_) = recommend_report(document).sections
    (line,) = [note for note in section.notes if note.startswith("no evidence: ")]
    assert line.endswith("and 1 more: another training than the newest; --where chooses")


def test_out_of_memory_everywhere_is_an_honest_answer_with_advice() -> None:
    failed = [run.model_copy(update={"phase": "backward"}) for run in stored()[:5]]
    failed = [run.model_copy(update={"status": Status.OOM, "ranks": ()}) for run in failed]
    document = ask(failed)
    assert document.certainty == "not tested"
    assert [one.outcome for one in document.others] == ["does not fit"]
    assert document.advice[0] == "out of memory: baseline (backward)"
    assert document.advice[1].startswith("fit first, then fast: train.gradient_checkpointing")


def test_limits_need_the_size_of_the_job() -> None:
    with pytest.raises(ScenarioError, match="--budget needs the size of the job"):
        ask(budget_usd=5.0)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"scenario": {"stacks": {"a": {}, "baseline": {}}}}, "baseline"),
        ({"scenario": {"stacks": {"a": {}, "b": {}}}}, "a"),
        ({"scenario": {"stacks": {"a": {}, "b": {}}, "baseline": "b"}}, "b"),
        ({}, "baseline"),
    ],
)
def test_the_baseline_of_a_session_is_that_of_its_scenario(
    document: dict[str, Any], name: str
) -> None:
    record = SessionRecord(id="s", started_at="2026", scenario="s", document=document)
    assert record.baseline == name


def test_at_a_rate_the_device_that_answers_soonest_is_taken_and_a_job_has_no_hours() -> None:
    servers = {"monday": 100.0, "tuesday": 40.0}
    found = [
        run.model_copy(
            update={
                "ranks": tuple(
                    rank.model_copy(update={"device": Device(type="cuda", name=device)})
                    for rank in run.ranks
                )
            }
        )
        for device, (session, ms) in zip(("NVIDIA L4", "NVIDIA T4"), servers.items(), strict=True)
        for run in serving("baseline", ms, seconds=ms / 1000 / ms**2, session=session)
    ]
    document = ask(found, mode="inference")
    assert document.offer is not None and document.offer.device == "t4"
    assert document.offer.request_seconds is not None
    job = ask(found, mode="inference", tokens=1e6)
    assert job.recommended is None and "leave --tokens, --lengths" in left_out(job)[0]
    table = render_report(recommend_report(document), "table")
    assert "median request" in table and "99 of 100" in table
    limited = ask(found, mode="inference", gpu="l4", at_most={"request_latency_p99": 10.0})
    assert limited.offer is None
    assert [one.outcome for one in limited.others] == ["over a limit"]


def test_caches_and_batches_stand_in_for_one_another_and_other_requests_do_not() -> None:
    usual, static, batch, longer = (
        training_of(make_experiment(scenario={"mode": "inference", "data": {}, "inference": one}))
        for one in ({}, {"cache": "static"}, {"batch_size": 4}, {"new_tokens": 64})
    )
    assert usual == static == batch != longer


def test_the_last_lines_take_a_recommended_stack_into_a_script() -> None:
    document = ask(stored())
    assert document.recommended is not None
    one = document.recommended
    text = render_report(recommend_report(document), "table").rstrip().splitlines()
    command = f"accel-bench export {one.stack} --to trl --run {one.evidence.experiment_id}"
    assert text[-2:] == ["In your script:", f"  {command}"]  # only its scenario names that stack
    row = one.model_copy(update={"stack": "activation-checkpointing"})
    named = document.model_copy(update={"recommended": row})
    code = '  with accel_bench.accelerate(model, "activation-checkpointing") as accelerated:'
    assert code in render_report(recommend_report(named), "table").splitlines()


def test_a_stack_of_the_scenario_is_taken_from_its_file(tmp_path: Path) -> None:
    """A stack of its own that has the name of a shipped one has other options."""
    file = tmp_path / "own.yaml"
    own = {"activation-checkpointing": {"use": [{"use": "activation-checkpointing", "every": 2}]}}
    file.write_text(json.dumps({"name": "own", "stacks": {"baseline": {"use": []}, **own}}))
    document = ask(stored())
    assert document.recommended is not None
    row = document.recommended.model_copy(update={"stack": "activation-checkpointing"})
    asked = document.request.model_copy(update={"scenario": str(file)})
    named = document.model_copy(update={"recommended": row, "request": asked})
    text = render_report(recommend_report(named), "table")
    assert f'(model, "activation-checkpointing", scenario="{file}") as accelerated:' in text


def test_the_code_of_a_swept_scenario_chooses_the_recommended_point(tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    sweep = {"train.micro_batch_size": [1, 2], "model.id": ["tiny-llama-cpu", "toy-llama-cpu"]}
    stacks: dict[str, Any] = {"baseline": {"use": []}, "fast": {"use": ["torch-compile"]}}
    file.write_text(json.dumps({"name": "swept", "stacks": stacks, "sweep": sweep}))
    document = ask(stored())
    assert document.recommended is not None
    point = {"train.micro_batch_size": 2, "model.id": "tiny-llama-cpu"}
    row = document.recommended.model_copy(update={"stack": "fast", "sweep": point})
    asked = document.request.model_copy(update={"scenario": str(file)})
    named = document.model_copy(update={"recommended": row, "request": asked})
    lines = render_report(recommend_report(named), "table").splitlines()
    (line,) = (line for line in lines if "accelerate(" in line)
    overrides = "{'sweep': {}, 'train.micro_batch_size': 2}"
    assert line.endswith(f'scenario="{file}", overrides={overrides}) as accelerated:')
    draft = read_draft(file).with_values([("sweep", {}, ""), ("train.micro_batch_size", 2, "")])
    (point_of_fast,) = (p for p in resolve(draft).points("cpu") if p.stack.name == "fast")
    assert point_of_fast.scenario.train.micro_batch_size == 2


def test_the_export_of_an_estimate_changes_its_scenario_as_the_estimate_did() -> None:
    document = ask(stored())
    assert document.offer is not None
    offer = document.offer.model_copy(update={"settings": {"train.micro_batch_size": 1}})
    estimated = document.model_copy(update={"recommended": None, "offer": offer})
    text = render_report(recommend_report(estimated), "table")
    changes = "--set model.id=tiny-llama-cpu --set train.micro_batch_size=1"
    assert f"--to trl --scenario quickstart {changes}" in text
