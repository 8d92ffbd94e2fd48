"""`accel-bench results cost` turns stored throughput into dollars."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from cli.program import Done, call
from imported_modules import imported
from store.store_factory import make_experiment, make_rank, make_result, make_session

from accel_bench.result import Status
from accel_bench.store.database import open_store

LORA = make_experiment("lora")
LONG = make_experiment("long", {"data.sequence_length": 64}, train={"seed": 7})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder that the environment names: two runs of one stack, a failed one of another.

    Each completed run made 200 tokens a second.
    """
    results = tmp_path / "results"
    with open_store(results, write=True) as store:
        store.add_session(make_session())
        for number, seconds in enumerate((0.5, 0.5)):
            rank = make_rank(0, seconds=seconds)
            store.add(make_result(f"run-{number}", experiment=LORA, round=number, ranks=(rank,)))
        store.add(
            make_result(
                "run-2",
                experiment=LONG,
                ranks=(),
                status=Status.OOM,
                reasons=("asked for 2 GiB, 1 GiB free",),
            )
        )
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(results))
    monkeypatch.delenv("ACCEL_BENCH_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return results


def cost(*arguments: str) -> Done:
    """Call `cost`, which must succeed."""
    done = call("results", "cost", *arguments)
    assert done.code == 0, done.err
    return done


def speed() -> float:
    """Tokens per second of the completed experiment."""
    row = json.loads(cost("--price", "1", "--format", "json").out)["experiments"][0]
    return float(row["tokens_per_second"]["median"])


@pytest.mark.usefixtures("folder")
def test_the_document_holds_the_formula_s_cost_its_scope_and_null_without_a_run() -> None:
    done = cost("--price", "40.77", "--tokens", "1.2e9", "--format", "json")
    assert done.err == ""
    document = json.loads(done.out)
    lora, long = document["experiments"]
    expected = 40.77 / (speed() * 3600 / 1e6)
    assert lora["usd_per_million_tokens"]["median"] == pytest.approx(expected)
    assert lora["usd_for_tokens"]["median"] == pytest.approx(1200 * expected)
    assert (lora["runs"], lora["instances"]) == (2, 1)
    assert long["usd_per_million_tokens"] is None
    assert "asked for 2 GiB" in long["notes"][0]
    assert document["tariff"]["stale"] is False
    assert "start-up" in document["excluded"]


@pytest.mark.usefixtures("folder")
def test_the_table_says_price_scope_and_what_is_left_out() -> None:
    printed = cost("--price", "40.77", "--tokens", "1.2e9").out
    expected = 40.77 / (speed() * 3600 / 1e6)
    (line,) = (line for line in printed.splitlines() if LORA.id in line)
    assert f"{expected:.4g}" in line
    assert f"{1200 * expected:,.2f}" in line
    assert "price: 40.77 USD per hour" in printed
    assert "1,200,000,000 tokens" in printed
    assert "without padding" in printed
    assert "start-up, model loading, compilation and checkpointing are not in the cost" in printed
    assert "asked for 2 GiB, 1 GiB free" in printed
    (failed,) = (line for line in printed.splitlines() if f" {LONG.id} " in line)
    assert failed.partition(LONG.id)[2].split() == ["oom", "0", "-", "1", "40.77", *"--"]


@pytest.mark.usefixtures("folder")
def test_csv_has_the_document_s_names_in_flat_columns() -> None:
    rows = list(csv.DictReader(io.StringIO(cost("--price", "2", "--format", "csv").out)))
    assert [row["stack"] for row in rows] == ["lora", "long"]
    expected = 2 / (speed() * 3600 / 1e6)
    assert float(rows[0]["usd_per_million_tokens_median"]) == pytest.approx(expected)
    assert rows[1]["usd_per_million_tokens_median"] == ""
    assert rows[0]["tariff_kind"] == "given"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("identifier", ["run-0", LORA.id, LORA.id[:6]])
def test_an_id_chooses_an_experiment_with_all_its_runs(identifier: str) -> None:
    found = json.loads(cost(identifier, "--price", "1", "--format", "json").out)["experiments"]
    assert [(row["experiment_id"], row["runs"]) for row in found] == [(LORA.id, 2)]


@pytest.mark.box
@pytest.mark.usefixtures("folder")
def test_a_stale_price_of_the_table_is_marked_in_every_format() -> None:
    done = cost("--instance", "g5.xlarge", "--format", "json")
    tariff = json.loads(done.out)["tariff"]
    assert tariff["stale"] is True
    assert (tariff["provider"], tariff["region"], tariff["devices"]) == ("aws", "us-east-1", 1)
    assert f"the price is {tariff['age_days']} days old" in done.err
    done = cost("--instance", "g5.xlarge")
    assert "STALE" in done.out
    assert "warning: " in done.err
    (row, _) = csv.DictReader(io.StringIO(cost("--instance", "g5.xlarge", "--format", "csv").out))
    assert row["tariff_stale"] == "True"


@pytest.mark.box
def test_a_price_of_one_s_own_is_taken_and_fresh(folder: Path) -> None:
    own = folder.parent / "config" / "accel-bench" / "prices.yaml"
    own.parent.mkdir(parents=True)
    day = (date.today() - timedelta(days=3)).isoformat()
    own.write_text(
        "prices:\n  - {provider: aws, instance: g5.xlarge, region: us-east-1, device: a10g,\n"
        f"     devices: 1, usd_per_hour: 0.7, spot_usd_per_hour: 0.2, source: me, date: {day}}}\n"
    )
    done = cost("--instance", "g5.xlarge", "--format", "json")
    assert done.err == ""
    tariff = json.loads(done.out)["tariff"]
    assert (tariff["usd_per_hour"], tariff["kind"], tariff["source"]) == (0.7, "on demand", "me")
    spot = json.loads(cost("--instance", "g5.xlarge", "--spot", "--format", "json").out)["tariff"]
    assert (spot["usd_per_hour"], spot["kind"]) == (0.2, "spot")


@pytest.mark.box
@pytest.mark.usefixtures("folder")
def test_a_machine_with_idle_devices_and_other_ones_is_noted() -> None:
    done = cost(LORA.id, "--instance", "p5.48xlarge", "--format", "json")
    (row,) = json.loads(done.out)["experiments"]
    assert row["notes"] == [
        "the runs used 'a CPU', the price is for machines with h100-sxm, which it did not use",
        "8 devices are paid for and 1 used",
    ]
    assert row["usd_per_hour"] == 55.04
    done = cost(LORA.id, "--instance", "p5.48xlarge", "--instances", "2", "--format", "json")
    assert json.loads(done.out)["experiments"][0]["usd_per_hour"] == 110.08


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "needs --price or --instance"),
        (("--price", "1", "--instance", "g5.xlarge"), "not both"),
        (("--price", "0"), "--price must be a positive number"),
        (("--price", "nan"), "--price must be a positive number"),
        (("--price", "inf"), "--price must be a positive number"),
        (("--price", "1", "--tokens", "-5"), "--tokens must be a positive number"),
        (("--price", "1", "--tokens", "nan"), "--tokens must be a positive number"),
        (("--price", "1", "--region", "x"), "choose a price of --instance"),
        pytest.param(
            ("--instance", "p4d.24xlarg"), "did you mean 'p4d.24xlarge'", marks=pytest.mark.box
        ),
        pytest.param(("--instance", "g5.xlarge", "--spot"), "no spot price", marks=pytest.mark.box),
        pytest.param(
            ("--instance", "g5.xlarge", "--region", "mars"),
            "none of them in mars",
            marks=pytest.mark.box,
        ),
        (("--price", "1", "--instances", "0"), "instances"),
        (("nothing", "--price", "1"), "begins with 'nothing'"),
    ],
)
def test_a_question_without_an_answer_exits_with_2_and_the_way_out(
    arguments: tuple[str, ...], words: str
) -> None:
    done = call("results", "cost", *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.out == ""


def test_a_folder_without_results_is_an_error(folder: Path, tmp_path: Path) -> None:
    done = call("results", "cost", "--price", "1", "--results", str(tmp_path / "other"))
    assert done.code == 2
    assert "there are no results" in done.err
    assert folder.exists()


def test_importing_the_command_imports_neither_pydantic_nor_rich_tables() -> None:
    heavy = {"pydantic", "torch", "rich.table", "yaml"}
    assert not imported("import accel_bench_report.cost", heavy)
