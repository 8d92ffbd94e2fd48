"""`accel-bench results claims`: claims about stacks against stored runs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_ci.claims import Claim, check_claim
from analysis_factory import STEADY, make_experiment, make_failures, make_rounds, scaled
from cli.program import Done, call
from store.store_factory import make_rank, make_result, make_session

from accel_bench.result import Result, Status
from accel_bench.store.database import open_store

BASE = make_experiment("lora")
FAST = BASE.model_copy(update={"stack": BASE.stack.model_copy(update={"name": "fast"})})
BROKEN = make_experiment("broken")
LATER, PLAIN, UNTOLD = map(make_experiment, ("later", "plain", "untold"))


def without_loss(run: Result) -> Result:
    """The same run with neither losses nor an update, as a foreign engine leaves it."""
    (rank,) = run.ranks
    assert rank.window is not None
    bare = {
        part: tuple(one.model_copy(update={"loss": None}) for one in getattr(rank.window, part))
        for part in ("samples", "warmup")
    }
    rank = rank.model_copy(update={"update": None, "window": rank.window.model_copy(update=bare)})
    return run.model_copy(update={"ranks": (rank,)})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a stack that is 1.25 times as fast as another."""
    monkeypatch.chdir(tmp_path)
    runs = [
        *make_rounds(BASE, STEADY),
        *make_rounds(FAST, scaled(0.8)),
        *make_failures(BROKEN, Status.OOM),
        *make_rounds(LATER, scaled(0.8), session="tuesday"),
        *map(without_loss, make_rounds(PLAIN, STEADY)),
        *map(without_loss, make_rounds(UNTOLD, scaled(0.8))),
    ]
    with open_store("accel_bench_results", write=True) as store:
        for name in ("monday", "tuesday"):
            store.add_session(make_session(name))
        for number, run in enumerate(runs):
            store.add(run.model_copy(update={"run_id": f"run-{number:02}"}))
    return tmp_path


def check(text: str, *arguments: str) -> Done:
    """Check the claims of a text."""
    Path("claims.yaml").write_text(text, encoding="utf8")
    return call("results", "claims", "claims.yaml", *arguments)


def document(text: str) -> tuple[Any, list[Any]]:
    """Exit code and checked claims."""
    done = check(text, "--format", "json")
    assert done.out, done.err
    return done.code, json.loads(done.out)["claims"]


HOLDS = """\
claims:
  - {name: much faster, stack: fast, baseline: lora, at_least: 1.2}
  - {stack: fast, baseline: lora, between: [1.2, 1.3], where: "session = monday"}
  - {stack: fast, metric: peak_memory_bytes, at_most: 1000}
"""


def test_claims_that_hold_exit_with_0_and_show_numbers_and_evidence(here: Path) -> None:
    code, found = document(HOLDS)
    assert (code, [one["verdict"] for one in found]) == (0, ["holds"] * 3)
    assert found[0]["text"] == "much faster"
    assert found[0]["value"]["low"] < 1.25 < found[0]["value"]["high"]
    assert found[0]["evidence"] == [*(f"run-{n:02}" for n in (5, 6, 7, 8, 9, 0, 1, 2, 3, 4))]
    assert found[1]["text"] == (
        "tokens_per_second of fast over lora is at least 1.2 and at most 1.3"
    )
    done = check(HOLDS)
    assert "3 claims: 3 holds. Each claim on its own is wrongly said to hold in at most" in done.out
    assert "1.250 [1.249, 1.251] in 5 rounds" in done.out
    rows = list(csv.DictReader(io.StringIO(check(HOLDS, "--format", "csv").out)))
    assert [row["verdict"] for row in rows] == ["holds"] * 3


def test_a_claim_that_does_not_hold_exits_with_1_and_one_that_cannot_be_told_with_5() -> None:
    wrong = "claims: [{stack: fast, baseline: lora, at_least: 1.5}]"
    code, (found,) = document(wrong)
    assert (code, found["verdict"]) == (1, "does not hold")
    across = "claims: [{stack: fast, baseline: lora, at_least: 1.25}]"
    code, (found,) = document(across)
    assert (code, found["verdict"]) == (5, "inconclusive")
    assert "the interval reaches across a limit" in found["reason"]


UNKNOWN = {
    "{stack: none, at_least: 1}": "no measured run of none is stored",
    "{stack: broken, baseline: lora, at_least: 1}": "broken ended as oom",
    "{stack: fast, baseline: lora, at_least: 1, where: round < 2}": "2 of the 5 rounds",
    "{stack: fast, metric: metrics.other, at_least: 1}": "no completed run or round has",
    "{stack: later, baseline: lora, at_least: 1}": "later and lora have no round in common",
    "{stack: untold, baseline: plain, at_least: 1}": "training is not shown to be the baseline's",
}


def test_what_the_store_does_not_show_cannot_be_told() -> None:
    text = "claims:\n" + "".join(f"  - {one}\n" for one in UNKNOWN)
    code, found = document(text)
    assert (code, {one["verdict"] for one in found}) == (5, {"inconclusive"})
    for one, said in zip(found, UNKNOWN.values(), strict=True):
        assert said in one["reason"]


BAD = {
    "claims:\n  - {stack: fast, at_lest: 1}": "claims.yaml:2:19: unknown key 'claims.0.at_lest'",
    "claims:\n  - {stack: fast}": "claims.yaml:2:5: claims.0: a claim has at_least, at_most",
    "claims:\n  - {stack: fast, at_least: fast}": "claims.yaml:2:19: claims.0.at_least:",
    "claims:\n  - {stack: fast, between: [2, 1]}": "nothing is at least 2 and at most 1",
    "claims:\n  - {stack: fast, metric: tokens_per_secnd, at_least: 1}": (
        "claims.yaml:2:19: claims.0.metric: no run has a figure 'tokens_per_secnd'; did you mean "
    ),
    "claims:\n  - {stack: lora, baseline: lora, at_least: 1}": "cannot be compared with itself",
    "claims: []": "claims.yaml:1:1: there are no claims",
    "claims: [{stack: fast, at_least: 1, where: status ?}]": "claims.yaml:1:37: claims.0.where: ",
}


def test_a_bad_file_is_an_error_that_names_its_place() -> None:
    for text, said in BAD.items():
        done = check(text)
        assert (done.code, done.out) == (2, "")
        assert said in done.err


def test_a_file_of_another_kind_is_refused() -> None:
    Path("claims.txt").write_text("claims: []", encoding="utf8")
    done = call("results", "claims", "claims.txt")
    assert (done.code, done.out) == (2, "")
    assert "claims.txt: a file of claims ends in .yaml, .yml, .toml, .json" in done.err


def test_a_figure_has_one_name_in_histories_and_claims(here: Path) -> None:
    with open_store("one", write=True) as store:
        store.add_session(make_session())
        run = make_result("run-0", experiment=BASE, ranks=(make_rank(tokens=100),))
        store.add(run)
    for figure, value in {
        **dict.fromkeys(("peak_memory", "peak_memory_bytes"), 1000),
        **dict.fromkeys(("step_seconds", "median_step_seconds"), 0.5),
        **{"samples_per_second": 2.0, "tokens_per_hour": 720_000, "mfu": None},
    }.items():
        asked = ("history", "run_id = run-0", "--figure", figure, "--results", "one")
        done = call(*asked, "--format", "json")
        values = [one for point in json.loads(done.out)["points"] for one in point["values"]]
        assert values == ([value] if value else [])
        checked = check_claim(Claim(stack="lora", metric=figure, at_least=1), [run])
        assert (checked.value and checked.value.median) == pytest.approx(value)
