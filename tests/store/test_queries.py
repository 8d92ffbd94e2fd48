"""Conditions choose stored runs, groups have figures; what cannot be understood is named."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ColumnElement
from store.store_factory import make_experiment, make_rank, make_result, make_session
from typer.testing import CliRunner

from accel_bench.cli.main import app
from accel_bench.errors import StoreError
from accel_bench.result import Metric, Result, Status
from accel_bench.store.database import Store, open_store
from accel_bench.store.listing import add_labels, labels_of, list_runs, remove_labels
from accel_bench.store.queries import condition_of, group_runs, leave_out_damaged


def run(name: str, stack: str, batch: int, seconds: float, **changes: Any) -> Result:
    """A run of a stack with a batch size; a step of it takes the seconds."""
    work = {
        "train": {"micro_batch_size": batch, "global_batch_size": batch, "learning_rate": 1e-4},
        "adapter": {"use": "lora", "r": 4 * batch, "bias": "none", "dora": batch > 1},
    }
    rank = make_rank(seconds=seconds)
    assert rank.window is not None
    samples = tuple(s.model_copy(update={"sequences": batch}) for s in rank.window.samples)
    window = rank.window.model_copy(update={"samples": samples})
    joules = Metric(name="energy", value=7.5, unit="joules", scope="rank")
    fields = {
        "experiment": make_experiment(stack, **work),
        "ranks": (rank.model_copy(update={"metrics": (*rank.metrics, joules), "window": window}),),
        **changes,
    }
    return make_result(name, **fields)


RESULTS = [
    run("a", "lora", 1, 0.5),
    run("b", "lora", 4, 0.25),
    run("c", "nf4", 4, 0.2, started_at="2026-02-01T00:00:00Z"),
    run("d", "nf4", 8, 0.1, status=Status.INVALID, phase="it's slow"),
    run("e", "nf4", 8, 0.1, status=Status.OOM, ranks=()),
]


def fill(store: Store) -> None:
    store.add_session(make_session())
    for result in RESULTS:
        store.add(result)
    add_labels(store, "b", "tag", ["nightly", "good"])
    add_labels(store, "c", "note", ["look at the driver"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Five runs, some of them with labels."""
    with open_store(tmp_path_factory.mktemp("results"), write=True) as store:
        fill(store)
        yield store


CONDITIONS = {
    "status = ok": "abc",
    "STATUS = ok": "",
    "status != ok": "de",
    "not status = ok or stack == lora": "abde",
    "train.micro_batch_size >= 4 and status = ok": "bc",
    "train_micro_batch_size >= 4 AND NOT (stack = nf4)": "b",
    "micro_batch_size = 4.0": "bc",
    "micro_batch_size > 3.5 and micro_batch_size < 1e1": "bcde",
    "learning_rate = 1e-4": "abcde",
    "tokens_per_second > 4.5e2 and status = ok": "c",
    "tokens_per_second <= 400": "ab",
    "tokens_per_hour > 1.62e6 and status = ok": "c",
    "steps_per_second > 0 and samples_per_second > 0": "abcd",
    "samples_per_second is null": "e",
    "tokens_per_second is null": "e",
    "tokens_per_second is not null": "abcd",
    # A run without a value is not equal to any.
    "tokens_per_second != 400": "acde",
    "not tokens_per_second > 0": "e",
    "stack in (lora, 'other')": "ab",
    "stack not in (lora)": "cde",
    "stack ~ 'N*4'": "cde",
    'phase = "it\'s slow"': "d",
    "phase ~ *slow": "d",
    "started_at >= 2026-01-10": "c",
    "train.gradient_checkpointing = false": "abcde",
    "optimizer = adamw and adapter = lora": "abcde",
    "effective.threads = 4": "abcd",
    "adapter.r >= 16": "bcde",
    "adapter.r = 'many'": "",
    "adapter.bias = none": "abcde",
    "adapter.bias > 3": "",
    "adapter.dora = true": "bcde",
    "adapter.dora = false": "a",
    "adapter.r in (4, 8, none)": "a",
    "adapter.bias in (none, 4)": "abcde",
    "adapter.dora in (true, 4)": "bcde",
    "tags in (good, x)": "b",
    "tags not in (good, x)": "acde",
    "micro_batch_size in (1, 8.0)": "ade",
    "stack in (" + ",".join(["nf4"] * 1500) + ")": "cde",
    " or ".join(["adapter.r = 4"] * 500): "a",
    "adapter.bias ~ N*": "abcde",
    "adapter.r is null": "",
    "metrics.energy_joules_rank0 > 7": "abcd",
    "tags = nightly": "b",
    "tags ~ n* and tags = good": "b",
    "tags != nightly": "acde",
    "tags is null": "acde",
    "notes ~ *driver*": "c",
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_chooses_runs(store: Store, condition: str) -> None:
    if condition.startswith("STATUS"):
        with pytest.raises(StoreError, match="did you mean 'status'"):
            condition_of(store, condition)
        return
    rows = store.rows(condition_of(store, condition))
    assert "".join(sorted(row.run_id for row in rows)) == CONDITIONS[condition]


REFUSED = {
    "": "the name of a column was expected and its end",
    "status": "at letter 7: one of <= >=",
    "status = ": "a value was expected and its end",
    "status = ok and": "the name of a column",
    "status = ok stack = lora": "at letter 13: `and`, `or` or its end",
    "(status = ok": r"`\)` was expected",
    "stack in lora": r"`\(` was expected",
    "stack in (lora": "`,` or `\\)`",
    "status = 'ok": "at letter 10",
    "1 = 1": "no stored run has a column or an option '1'",
    "train.micro_batchsize > 1": "did you mean 'train.micro_batch_size'",
    "adapter.rank = 8": "no stored run has a column or an option 'adapter.rank'",
    "tokens_per_sec > 1": "did you mean 'tokens_per_second'",
    "seed = 1": "means several columns: train.seed, measure.seed",
    "train.micro_batch_size = four": "train.micro_batch_size is a number, and 'four' is none",
    "train.micro_batch_size = nan": "'nan' is none",
    "train.gradient_checkpointing = 1": "is true or false, not '1'",
    "status = ok; drop table runs": "at letter 14",
    "payload = 1": "no stored run has",
    "not " * 60 + "status = ok": "no more than 50 levels",
    " or ".join(["tags = x"] * 501): "at most 500 comparisons",
    "x" * 20_000: "20000 letters; 10000 are allowed",
}


@pytest.mark.parametrize("condition", REFUSED)
def test_what_cannot_be_understood_is_named_with_its_place(store: Store, condition: str) -> None:
    with pytest.raises(StoreError, match=REFUSED[condition]):
        condition_of(store, condition)


def test_a_value_is_never_sql(store: Store) -> None:
    for value in ("' or 1=1 --", "%", "_", "\\"):
        for sign in ("=", "~"):
            quoted = '"' + value + '"'
            assert store.rows(condition_of(store, f"stack {sign} {quoted}")) == []
    assert store.count() == len(RESULTS)


def test_groups_have_the_means_of_their_completed_runs(store: Store) -> None:
    rows = group_runs(store, ["stack", "micro_batch_size"])
    assert [list(row.values())[:4] for row in rows] == [
        ["lora", 1, 1, 1],
        ["lora", 4, 1, 1],
        ["nf4", 4, 1, 1],
        ["nf4", 8, 2, 0],
    ]
    assert list(rows[0])[:4] == ["stack", "train.micro_batch_size", "runs", "completed"]
    (lora, nf4) = group_runs(store, ["stack"])
    means = [row["tokens_per_second_mean"] for row in (lora, nf4)]
    assert means == pytest.approx([(200 + 400) / 2, 500])
    assert (lora["tokens_per_second_min"], lora["tokens_per_second_max"]) == (200, 400)
    assert [row["runs"] for row in group_runs(store, ["adapter.r"])] == [1, 2, 2]
    chosen = group_runs(store, ["status"], [condition_of(store, "stack = nf4")])
    assert [(row["status"], row["runs"]) for row in chosen] == [
        ("invalid", 1),
        ("ok", 1),
        ("oom", 1),
    ]
    with pytest.raises(StoreError, match="cannot be grouped by tags"):
        group_runs(store, ["tags"])


def change_column(folder: Path, run_id: str, column: str, value: object) -> None:
    """Change a column of a stored row behind the store's back."""
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        change = f"UPDATE runs SET {column} = ? WHERE run_id = ?"
        assert connection.execute(change, (value, run_id)).rowcount == 1


def test_a_damaged_run_is_in_no_figure_of_a_group_and_stops_no_question(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        fill(store)
    change_column(tmp_path, "a", "tokens_per_second", 1e12)
    change_column(tmp_path, "d", "options", '{"adapter.r":')
    change_column(tmp_path, "e", "metrics", '{"energy_joules_rank0":')
    with open_store(tmp_path, write=False) as store:
        sound: list[ColumnElement[bool]] = []
        assert sorted(leave_out_damaged(store, sound)) == ["a", "d", "e"]
        (lora, nf4) = group_runs(store, ["stack"], sound)
        assert (lora["runs"], lora["tokens_per_second_mean"], nf4["runs"]) == (1, 400, 1)
        for text, ids in (("adapter.r > 0", "abce"), ("metrics.energy_joules_rank0 > 0", "abcd")):
            rows = store.rows(condition_of(store, text))
            assert "".join(sorted(row.run_id for row in rows)) == ids
    arguments = ["results", "list", "--results", str(tmp_path), "--group-by", "stack"]
    done = CliRunner().invoke(app, [*arguments, "--format", "json"], catch_exceptions=False)
    assert [row["runs"] for row in json.loads(done.stdout)] == [1, 1]
    assert "left out as corrupt: a, d, e" in done.stderr


def test_a_damaged_run_whose_id_is_no_text_is_in_no_group(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        fill(store)
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as connection, connection:
        connection.execute("UPDATE runs SET run_id = CAST(X'6ee1' AS TEXT) WHERE run_id = 'a'")
    with open_store(tmp_path, write=False) as store:
        sound: list[ColumnElement[bool]] = []
        assert leave_out_damaged(store, sound) == ["n\udce1"]
        (lora, _) = group_runs(store, ["stack"], sound)
        assert lora["runs"] == 1


def test_labels_are_kept_once_and_can_be_taken_away(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        fill(store)
        add_labels(store, "b", "tag", ["good"])
        assert labels_of(store)["b"] == {"tag": ["good", "nightly"]}
        listed = {row["run_id"]: row for row in list_runs(store)[0]}
        assert (listed["b"]["tags"], listed["a"]["tags"]) == (["good", "nightly"], [])
        assert listed["c"]["notes"] == ["look at the driver"]
        assert remove_labels(store, "monday", "tag", ["good", "nightly"]) == list("abdec")
        assert "tags" not in list_runs(store)[0][0]
        assert store.results() == [RESULTS[place] for place in (0, 1, 3, 4, 2)]
        for text in ("", "  ", "x" * 101):
            with pytest.raises(StoreError, match="from 1 to 100 letters"):
                add_labels(store, "a", "tag", [text])
        with pytest.raises(StoreError, match="begins with 'zzz'"):
            add_labels(store, "zzz", "tag", ["good"])
