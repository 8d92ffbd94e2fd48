"""`accel-bench results pivot` and `summary` show stored experiments in one table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from analysis_factory import make_experiment
from cli.program import Done, call
from store.store_factory import make_rank, make_result, make_session

from accel_bench.result import Status
from accel_bench.store.database import open_store

BATCH = "train.micro_batch_size"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder that the environment names: two stacks at two batch sizes.

    Each completed run made 200 tokens a second; the larger batch of one stack ran out of memory.
    """
    results = tmp_path / "results"
    with open_store(results, write=True) as store:
        store.add_session(make_session())
        for number, (stack, batch) in enumerate([("lora", 1), ("lora", 4), ("nf4", 1), ("nf4", 4)]):
            point = make_experiment(
                stack, sweep={BATCH: batch}, scenario={"train": {"micro_batch_size": batch}}
            )
            fits = (stack, batch) != ("lora", 4)
            rank = make_rank(tokens=100)
            window = rank.window
            assert window is not None
            samples = {
                part: tuple(
                    one.model_copy(
                        update={
                            "sequences": batch,
                            "processed_tokens": 110 * batch,
                            "real_tokens": 100 * batch,
                        }
                    )
                    for one in getattr(window, part)
                )
                for part in ("warmup", "samples")
            }
            rank = rank.model_copy(update={"window": window.model_copy(update=samples)})
            store.add(
                make_result(
                    f"run-{number}",
                    experiment=point,
                    position=number,
                    ranks=(rank,) if fits else (),
                    status=Status.OK if fits else Status.OOM,
                    reasons=() if fits else ("asked for 2 GiB, 1 GiB free",),
                )
            )
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(results))
    return results


def succeed(*arguments: str) -> Done:
    """Call the program, which must succeed."""
    done = call(*arguments)
    assert done.code == 0, done.err
    return done


def test_a_grid_shows_oom_cells_ratios_and_money(folder: Path) -> None:
    arguments = ["--rows", "stack", "--columns", "batch_size", "--tokens", "1e6"]
    text = succeed("results", "pivot", *arguments, "--price", "3.6").out
    assert "4 experiments (1 OOM, 3 measured)" in text
    assert "tokens per hour" in text and "samples per second" in text
    lora = [line.split() for line in text.splitlines() if line.startswith("lora ")]
    assert all(line[-1] == "OOM" for line in lora)
    assert "asked for 2 GiB, 1 GiB free" in text
    document = json.loads(
        succeed("results", "pivot", *arguments, "--price", "3.6", "--format", "json").out
    )
    cells = {(*cell["row"], *cell["column"]): cell for cell in document["cells"]}
    figures = {key: value and value["median"] for key, value in cells["nf4", 4]["figures"].items()}
    # 800 tokens a second at a tenth of a cent.
    assert figures["tokens_per_hour"] == pytest.approx(2_880_000)
    assert figures["samples_per_second"] == pytest.approx(8.0)
    assert figures["steps_per_second"] == pytest.approx(2.0)
    assert figures["dollars_per_million_tokens"] == pytest.approx(1.25)
    assert figures["times_as_fast"] == pytest.approx(4.0)
    assert figures["hours"] == pytest.approx(1e6 / 800 / 3600)
    assert cells["lora", 4]["word"] == "OOM" and cells["lora", 4]["figures"] == {}


def test_stacks_are_compared_with_the_baseline_that_is_stored(folder: Path) -> None:
    with open_store(folder, write=True) as store:
        document = {"scenario": {"stacks": {"lora": [], "nf4": []}, "baseline": "nf4"}}
        store.add_session(make_session("tuesday").model_copy(update={"document": document}))
        for number, stack in enumerate(("lora", "nf4")):
            one = make_experiment(stack, scenario={"train": {"learning_rate": 0.5}})
            store.add(make_result(f"later-{number}", "tuesday", experiment=one, position=number))
    made = json.loads(succeed("results", "pivot", "tuesday", "--format", "json").out)
    assert made["reference"] == {"stack": "nf4"}
    text = succeed("results", "summary", "tuesday", "--group-by", "stack", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["value"], row["pairs"]) for row in rows] == [("nf4", "0"), ("lora", "1")]


def test_a_figure_has_one_value_by_its_short_and_its_long_name(folder: Path) -> None:
    for figure, value in {
        **dict.fromkeys(("peak_memory", "peak_memory_bytes"), 1000),
        **dict.fromkeys(("step_seconds", "median_step_seconds"), 0.5),
        **{"samples_per_second": 2.0, "tokens_per_hour": 720_000, "mfu": None},
    }.items():
        made = json.loads(
            succeed("results", "pivot", "run-0", "--values", figure, "--format", "json").out
        )
        found = made["cells"][0]["figures"][made["values"][0]["name"]]
        assert (found and found["median"]) == value


def test_a_figure_that_lacks_an_option_says_which(folder: Path) -> None:
    text = succeed("results", "pivot", "--price", "0.1", "--values", "dollars").out
    assert "dollars: not known without --tokens" in text and "--instance" not in text
    text = succeed("results", "pivot", "--tokens", "1e6", "--values", "hours,dollars").out
    assert "hours: for 1,000,000 tokens" in text and "hours and USD" not in text
    assert "dollars: not known without --price or --instance" in text


def test_a_line_of_the_csv_is_an_experiment_with_its_place(folder: Path) -> None:
    text = succeed(
        "results", "pivot", "--values", "tokens_per_second,last_loss", "--format", "csv"
    ).out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["stack"], row[BATCH], row["word"]) for row in rows] == [
        ("lora", "1", ""),
        ("lora", "4", "OOM"),
        ("nf4", "1", ""),
        ("nf4", "4", ""),
    ]
    assert rows[0]["tokens_per_second"] and not rows[1]["tokens_per_second"]


def test_a_selection_and_a_condition_choose_what_is_arranged(folder: Path) -> None:
    one = json.loads(succeed("results", "pivot", "run-2", "--format", "json").out)
    assert (one["shared"]["train.micro_batch_size"], len(one["cells"])) == (1, 1)
    small = succeed("results", "pivot", "--where", f"{BATCH} = 1", "--format", "json").out
    assert len(json.loads(small)["cells"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "stck"], "no experiment has a key 'stck'; did you mean 'stack'?"),
        (["--values", "tokens"], "there is no figure 'tokens'; did you mean"),
        (["--against", "batch_size=3"], f"no experiment of the table has {BATCH}=3; known: 1, 4"),
        (
            ["--against", "hardware=x"],
            f"of --rows and --columns no key is 'hardware'; known: batch_size, stack, {BATCH}\n",
        ),
        (["--against", "stack=a", "--against", "stack=b"], "stack is given twice"),
        (["--against", "batch_size=1", "--against", f"{BATCH}=4"], f"{BATCH} is given twice"),
        (["--against", "batch_size"], "expected KEY=VALUE, such as stack=lora"),
        (["--spot"], "--provider, --region and --spot choose a price of --instance"),
    ],
)
def test_what_cannot_be_shown_is_an_error(folder: Path, arguments: list[str], message: str) -> None:
    done = call("results", "pivot", *arguments)
    assert (done.code, message in done.err) == (2, True), done.err


def test_a_summary_has_a_table_for_each_setting_that_differs(folder: Path) -> None:
    text = succeed("results", "summary").out
    assert "by stack" in text and "by train.micro_batch_size" in text and "1 OOM" in text
    found = succeed("results", "summary", "--group-by", "batch_size", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(found)))
    assert [(row["value"], row["experiments"], row["pairs"]) for row in rows] == [
        ("1", "2", "0"),
        ("4", "2", "1"),
    ]
    assert float(rows[1]["times_as_fast_median"]) == pytest.approx(4.0)
