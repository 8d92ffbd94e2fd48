"""What a report selects: the newest command, one that a word means, or all runs of a condition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accel_bench_report import commands
from accel_bench_report.commands import select_commands
from store.store_factory import make_experiment, make_result, make_session

from accel_bench.errors import StoreError
from accel_bench.result import Provenance
from accel_bench.store.database import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Three commands of one scenario, the last of two sessions."""
    with open_store(tmp_path / "results", write=True) as store:
        for day, session in enumerate(("monday", "tuesday", "wednesday", "wednesday.2"), 1):
            store.add_session(make_session(session))
            for number in range(2):
                experiment = make_experiment("lora" if number else "nf4")
                run = make_result(f"{session}-{number}", session=session, experiment=experiment)
                when = f"2026-01-0{day}T08:0{number}:00Z"
                store.add(run.model_copy(update={"started_at": when, "round": day}))
        yield store


def test_without_a_word_it_is_the_newest_command_with_all_its_sessions(store: Store) -> None:
    found, lines, _ = select_commands(store)
    assert [(one.id, len(one.results)) for one in found] == [("wednesday", 4)]
    assert len(lines) == 4


def test_runs_of_an_export_are_marked(store: Store) -> None:
    store.add_session(make_session("thursday"))
    for number, origin in enumerate(("exported", "measured")):
        run = make_result(f"thursday-{number}", session="thursday", experiment=make_experiment())
        store.add(
            run.model_copy(
                update={
                    "started_at": f"2026-01-05T08:0{number}:00Z",
                    "provenance": Provenance(origin=origin),
                }
            )
        )
    _, lines, _ = select_commands(store)
    assert [line.origin for line in lines] == ["exported", "measured"]
    assert {line.series for line in lines} == {make_experiment().series}


@pytest.mark.parametrize(("word", "command"), [("peft", "wednesday"), ("tues", "tuesday"),
                                               ("monday-1", "monday")])  # fmt: skip
def test_a_word_means_the_commands_that_hold_it(store: Store, word: str, command: str) -> None:
    assert [one.id for one in select_commands(store, [word])[0]] == [command]


def test_a_condition_chooses_runs_of_all_commands(store: Store) -> None:
    found, lines, _ = select_commands(store, where="stack = nf4")
    assert [(one.id, len(one.results)) for one in found] == [
        ("wednesday", 2),
        ("tuesday", 1),
        ("monday", 1),
    ]
    assert {line.stack for line in lines} == {"nf4"}


def test_beyond_the_limit_older_commands_have_their_columns_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MOST_RUNS", 5)
    found, lines, notes = select_commands(store, where="round >= 0")
    assert [one.id for one in found] == ["wednesday"]
    assert len(lines) == 8
    assert "1 of 3 commands are shown in detail" in notes[0]


def test_what_is_not_there_is_an_error_that_says_what_is(store: Store) -> None:
    with pytest.raises(StoreError, match="begins with 'sunday'"):
        select_commands(store, ["sunday"])
    with pytest.raises(StoreError, match=r"no run .* is selected"):
        select_commands(store, where="stack = other")
