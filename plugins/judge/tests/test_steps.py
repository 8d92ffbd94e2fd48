"""Cheats are refused, or gain nothing. docs/judge.md lists all of them, and all honest rewrites."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from accel_bench.errors import InvalidRunError

HERE = Path(__file__).parent
REFERENCE = HERE / "steps" / "reference.py"
PAGE = HERE.parents[2] / "docs" / "judge.md"
CHEATS = sorted((HERE / "cheats").glob("*.py"))
HONEST = sorted((HERE / "honest").glob("*.py"))
TWICE = ("keeps_results_on_disk",)
"""Cheats that are honest in their first run."""

WITHOUT_GAIN = ("continues_itself", "daemon", "patches_clocks", "sets_variables")
"""Cheats that train as the reference does, and change nothing that the judge reads."""

REFERENCES = {
    name: HERE / "steps" / folder / "reference.py"
    for name, folder in (
        ("counts_alone", "counting"),
        ("draws_the_next_batches", "numbers"),
        ("float32_for_float64", "double"),
        ("helper_for_small_steps", "numbers"),
    )
}
"""References other than the transformer: batches that show all of their generator's state, a large
buffer, weights in float64."""

REASONS = {
    "loss, update": r"the (loss|update) of ",
    # A second answer that comes late is taken for that to the next step.
    "answers": r"answered what |the (loss|update) of ",
    "processes": "processes that the step has started",
    "confined": r"PermissionError|Operation not permitted",
    "no gain": "",
    "ended": "the process of the step ended",
}
"""Pattern of each reason that the page's table names."""


def rows_of_the_page() -> dict[str, str]:
    """Return the reason of each cheat that the page lists."""
    refused = PAGE.read_text().partition("## What is refused")[2]
    return dict(re.findall(r"^\| `(\w+)` \| .* \| ([a-z, ]+) \|$", refused, re.MULTILINE))


@pytest.mark.parametrize(
    "path", [path for path in CHEATS if path.stem not in WITHOUT_GAIN], ids=lambda path: path.stem
)
def test_a_cheat_is_refused_for_the_reason_on_the_page(
    path: Path, take_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, reference = rows_of_the_page()[path.stem], REFERENCES.get(path.stem, REFERENCE)
    monkeypatch.setattr("accel_bench_judge.subject.STEP_SECONDS", 20.0)  # one waits for a helper
    if path.stem in TWICE:
        take_steps(path).judge()
    with pytest.raises(InvalidRunError) as refused:
        take_steps(path, reference).judge()
    assert re.search(REASONS[reason], str(refused.value))


def test_the_page_lists_every_cheat_and_every_rewrite() -> None:
    assert set(rows_of_the_page()) == {path.stem for path in CHEATS}
    assert all(f"`{path.stem}`" in PAGE.read_text() for path in HONEST)
    assert len(CHEATS) >= 40 and len(HONEST) >= 20


@pytest.mark.parametrize("name", ["patches_clocks", "sets_variables"])
def test_clocks_and_variables_of_the_step_are_not_read(name: str, take_steps: Any) -> None:
    before = time.monotonic()
    trial = take_steps(HERE / "cheats" / f"{name}.py")
    assert time.monotonic() - before >= 0.02 * len(trial.steps)
    assert trial.judge().training == "bitwise equal"


def test_what_is_computed_after_the_answer_is_on_the_clock_or_refused(
    nursery: Any, tmp_path: Path
) -> None:
    from accel_bench_judge.trial_impl import Trial

    cheat = HERE / "cheats" / "continues_itself.py"
    trial = Trial(str(REFERENCE), str(cheat), tmp_path / "cache", start=nursery, fewer_flops=True)
    took = []
    try:
        for _ in range(5):
            trial.begin()
            before = time.monotonic()
            answer = trial.ask()
            took.append(time.monotonic() - before)
            trial.keep(answer)
        trial.end()
        trial.judge()
    except InvalidRunError as refused:
        assert re.search(r"went on for |the (loss|update) of ", str(refused))
    else:
        assert min(took[2:]) >= 0.02  # which each update sleeps
    finally:
        trial.end()


def test_what_was_started_before_computes_nothing_in_measured_steps(
    nursery: Any, tmp_path: Path
) -> None:
    from accel_bench_judge.trial_impl import Trial

    trial = Trial(
        str(REFERENCE), str(HERE / "cheats" / "daemon.py"), tmp_path / "cache", start=nursery
    )
    try:
        trial.count()
        trial.watch()
        before = trial._subject.others_usage()
        assert before.faults > 0
        for _ in range(3):
            trial.begin()
            trial.keep(trial.ask())
        assert trial._subject.others_usage() == before
    finally:
        trial.end()
    assert trial.judge().training == "bitwise equal"
