"""Which sessions repeat others by their bundle: of each machine the newest repetition counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accel_bench_share.repetitions import Repetition, Repetitions, read_repetitions
from repeated_sessions import make_runs
from store.store_factory import MACHINE, make_result, make_session

from accel_bench.store.database import Store, open_store
from accel_bench.store.sessions import REPEATED

MEASURED = make_result("first", session="first")
"""Run that is repeated; its host is `bench-1`."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with open_store(tmp_path / "results", write=True) as store:
        yield store


def repeat(store: Store, day: str, bundle: str, host: str, *options: str) -> None:
    """Store a repetition of one run, by a bundle of the session `first`."""
    changes = {
        "started_at": f"2026-02-{day}T08:00:00Z",
        "command": ("accel-bench", "reproduce", "bundle.zip", *options),
        "document": {"repeats": bundle, REPEATED: ["first"]},
    }
    store.add_session(make_session(day).model_copy(update=changes))
    machine = MACHINE.model_copy(update={"host": host})
    store.add(make_result(f"run-{day}", session=day, machine=machine))


def found(store: Store) -> list[tuple[list[str], bool]]:
    """The days of each repetition, and whether it is of the machine that measured first."""
    (repetitions,) = read_repetitions(store, [[MEASURED]])
    return [([run.session for run in one.results], one.same_machine) for one in repetitions.found]


def test_the_newest_counts_whichever_bundle_it_repeats(store: Store) -> None:
    for day, bundle in (("01", "a"), ("02", "b"), ("03", "a")):
        repeat(store, day, bundle, "bench-2")
    assert found(store) == [(["03"], False)]


def test_a_resumed_one_goes_on_with_those_of_its_bundle_on_its_machine(store: Store) -> None:
    repeat(store, "01", "a", "bench-1")
    repeat(store, "02", "a", "bench-2")
    repeat(store, "03", "b", "bench-2")
    repeat(store, "04", "a", "bench-3")
    repeat(store, "05", "a", "bench-2", "--resume")
    assert found(store) == [(["01"], True), (["04"], False), (["02", "05"], False)]


def test_the_machines_that_repeated_it_last_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bench_share.repetitions.MOST_MACHINES", 2)
    for day, host in (("01", "bench-1"), ("02", "bench-2"), ("03", "bench-3"), ("04", "bench-1")):
        repeat(store, day, "a", host)
    assert found(store) == [(["03"], False), (["04"], True)]


def test_a_session_that_nothing_repeats_has_no_repetition(store: Store) -> None:
    repeat(store, "01", "a", "bench-2")
    other = make_result("other", session="other")
    assert read_repetitions(store, [[other]]) == [Repetitions([])]


def test_a_badge_says_how_often_a_bundle_was_reproduced() -> None:
    again = [Repetition(make_runs("tuesday"), True), Repetition(make_runs("friday", 0.5), False)]
    badges = Repetitions(again).badges(make_runs(), "lora")
    assert {stack for stack, _ in badges} == {"fast", "slow"}
    assert badges["slow", "{}"][0] == "reproduced on 2 machines"
    short, full = badges["fast", "{}"]
    assert short == "reproduced on 1 of 2 machines"
    assert full == (
        "its bundle was repeated on 2 machines, the session's own among them; the newest of each: "
        "1 reproduced, 1 not reproduced"
    )
