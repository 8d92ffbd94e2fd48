"""`accel-bench compare` prints two stored experiments in every format, with what differs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from analysis_factory import STEADY, make_experiment, make_rounds, scaled
from cli.program import Done, call
from store.store_factory import make_session

from accel_bench.store.database import open_store

BASE = make_experiment("lora")
FAST = BASE.model_copy(update={"stack": BASE.stack.model_copy(update={"name": "fast"})})
SEEDED = make_experiment("lora", scenario={"train": {"seed": 7}})
OTHER = SEEDED.model_copy(update={"stack": SEEDED.stack.model_copy(update={"name": "other"})})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder that the environment names, with three stacks in one session."""
    folder = tmp_path / "results"
    rows = [
        *make_rounds(BASE, STEADY),
        *make_rounds(FAST, scaled(0.8)),
        *make_rounds(OTHER, scaled(0.9)),
    ]
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        for number, row in enumerate(rows):
            store.add(row.model_copy(update={"run_id": f"run-{number}"}))
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(folder))
    return folder


def compare(*arguments: str) -> Done:
    """Compare what must be comparable by name."""
    done = call("compare", *arguments)
    assert done.code == 0, done.err
    return done


def test_pairs_are_printed_with_their_verdict() -> None:
    printed = compare("lora", "fast").out
    assert "comparable: yes" in printed
    assert printed.splitlines()[:2] == [
        "lora and fast",
        "B, fast, is 1.250 times as fast as A, lora [1.248, 1.252] (5 rounds): faster; loss "
        "bitwise equal; update equivalent.",
    ]


def test_the_document_says_what_differs() -> None:
    found = json.loads(compare("lora", "other", "--format", "json").out)
    assert found["comparable"] is False
    assert found["differing"] == [{"key": "work.train.seed", "a": None, "b": 7}]
    assert (found["verdict"], found["rounds"]) == ("not tested", 5)
    assert set(found["a"]["step_seconds"]) == {"p50", "p90", "p95", "p99", "spread"}


def test_people_see_the_differing_fields_with_both_values() -> None:
    printed = compare("lora", "other").out
    (line,) = [line for line in printed.splitlines() if line.startswith("work.train.seed")]
    assert line.split() == ["work.train.seed", "-", "7"]
    assert "comparable: no: more differs than the stacks declare" in printed


def test_a_reference_in_another_folder_is_history(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "reference"
    with open_store(other, write=True) as store:
        store.add_session(make_session("tuesday"))
        for row in make_rounds(FAST, scaled(0.5), session="tuesday"):
            store.add(row)
    done = compare("lora", "fast", "--results-b", str(other), "--format", "json")
    found = json.loads(done.out)
    assert (found["comparable"], found["paired"], found["verdict"]) == (True, False, "not tested")
    assert "history, not a gate" in found["verdict_reason"]
    assert found["ratio"]["median"] == pytest.approx(2.0, rel=1e-2)


def test_csv_has_one_row_with_the_names_of_the_document() -> None:
    (row,) = csv.DictReader(io.StringIO(compare("lora", "fast", "--format", "csv").out))
    assert (row["verdict"], row["comparable"], row["a_stack"], row["b_stack"]) == (
        "better",
        "True",
        "lora",
        "fast",
    )
    assert float(row["ratio_median"]) == pytest.approx(1.25, rel=1e-3)
    assert float(row["a_step_seconds_p99"]) == pytest.approx(0.1, rel=1e-2)


def test_markdown_has_a_table_of_both_and_one_of_what_differs() -> None:
    lines = compare("lora", "other", "--format", "markdown").out.splitlines()
    assert lines[0] == "## lora and other"
    assert lines.count("|  | A | B |") == 1
    assert "| stack | lora | other |" in lines
    assert "| work.train.seed | - | 7 |" in lines


def test_a_word_that_means_nothing_is_refused_with_what_is_there() -> None:
    done = call("compare", "lora", "fats")
    assert done.code == 2
    assert "'fats'" in done.err


def test_sweep_points_are_compared_one_by_one(tmp_path: Path) -> None:
    swept = tmp_path / "swept"
    points = [make_experiment(name, sweep={"k": k}) for k in (1, 2) for name in ("lora", "fast")]
    with open_store(swept, write=True) as store:
        store.add_session(make_session())
        for point in points:
            for row in make_rounds(point, STEADY):
                store.add(row)
    done = compare("lora", "fast", "--results", str(swept), "--format", "json")
    found = json.loads(done.out)
    assert all(one["a"]["sweep"] == one["b"]["sweep"] for one in found)
    assert sorted(one["a"]["sweep"]["k"] for one in found) == [1, 2]
    text = compare("lora", "fast", "--results", str(swept)).out
    assert len(text.split("\ncomparable: ")) == 3
    title, table = text.split("\n\n")[:2]
    assert title == "lora and fast at 2 sweep points"
    assert [line.split()[0] for line in table.splitlines()[-2:]] == ["k=1", "k=2"]
    by_memory = ("--compare", "peak_memory_bytes")
    title, table = compare("lora", "fast", "--results", str(swept), *by_memory).out.split("\n\n")[
        :2
    ]
    assert title == "lora and fast at 2 sweep points, by peak_memory_bytes (less is better)"
    assert "times as good" in table and "fast " not in table
