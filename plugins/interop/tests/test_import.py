"""`results import` and `scenarios import`; imported rows are marked wherever they are shown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from accel_bench_interop.row_files import flat_run
from cli.program import NULLS, call
from sqlalchemy import Connection
from store.store_factory import make_experiment, make_rank, make_result, make_session

from accel_bench.analysis.aggregate import PlannedSummary, collect_runs
from accel_bench.analysis.compare import compare_stored
from accel_bench.analysis.summary import summarize
from accel_bench.errors import StoreError
from accel_bench.result import Provenance, Result
from accel_bench.store import database
from accel_bench.store.database import open_store
from accel_bench.store.records import RunRecord, insert_run
from accel_bench.store.selection import select_pairs

from .files import CSV, IPFS, MLLOG, OPTIMUM, PYTEST, STATE, TRAINER, write
from .fms_folder import SCENARIOS, write_folder
from .test_formats import imported
from .test_scenarios import CONFIG


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a file of each format."""
    folder = tmp_path / "files"
    write(folder, "hf/all_results.json", TRAINER)
    write(folder, "hf2/trainer_state.json", STATE)
    write(folder, "benchmarks.csv", CSV)
    write(folder, "optimum/benchmark.json", OPTIMUM)
    write(folder, "0001.json", PYTEST)
    write(folder, "mlperf.log", MLLOG)
    write(folder, "training.json", IPFS)
    return folder


def test_a_folder_is_imported_once_listed_shown_and_exported(files: Path, tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "R"))
    first = call("results", "import", str(files), *results)
    assert first.code == 0, first.err
    assert first.out.count("import-") == 7
    again = call("results", "import", str(files), *results)
    assert again.out.count("(was there)") == 7

    listed = call("results", "list", *results, "--format", "json")
    rows = json.loads(listed.out)
    assert len(rows) == 4 + 3 + 5
    assert all(row["provenance"].startswith("imported ") for row in rows)
    assert "imported fms-csv" in call("results", "list", *results).out

    (two,) = (row for row in rows if row["tokens_per_second"] == 2 * 2698.11)
    assert (two["status"], two["provenance"]) == ("ok", "imported fms-csv")

    shown = call("results", "show", "import-fms-csv", *results).out
    assert "nvidia_mem_reserved is in MiB" in shown
    assert "inferred, the file states no reason" in shown
    assert "sha256" in shown
    assert "repeat with" not in shown

    flat = list(
        csv.DictReader(io.StringIO(call("results", "export", "--format", "csv", *results).out))
    )
    assert all(row["provenance"].startswith("imported ") for row in flat)
    trained = next(row for row in flat if row["provenance"] == "imported trainer-results")
    assert trained["model"] == ""  # a default of ours is no fact of theirs
    assert trained["tokens_per_second_per_device"] == "3421.164"
    exported = call("results", "export", "--format", "fms-csv", *results).out
    assert exported.count("imported ") == len(rows)
    assert ":::MLLOG" in call("results", "export", "--format", "mllog", *results).out


@pytest.mark.box
def test_imported_rows_are_no_completed_runs_to_audit(files: Path, tmp_path: Path) -> None:
    call("results", "import", str(files), "--results", str(tmp_path / "R"))
    audit = call("results", "check", str(tmp_path / "R"))
    assert audit.code == 0
    assert "0 completed: no invariant is broken" in audit.out


@pytest.mark.box
def test_a_cost_of_an_imported_row_is_refused_in_words(files: Path, tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "R"))
    call("results", "import", str(files / "benchmarks.csv"), *results)
    cost = call("results", "cost", "--price", "3", *results)
    assert "no cost, since it was imported from" in cost.out
    assert "which states 5,396.22 tokens/s" in cost.out
    rows = json.loads(call("results", "cost", "--price", "3", "--format", "json", *results).out)[
        "experiments"
    ]
    assert {row["usd_per_million_tokens"] for row in rows} == {None}


def test_errors_name_the_culprit_and_the_way_out(tmp_path: Path) -> None:
    other = write(tmp_path, "a.json", {"a": 1})
    results = ("--results", str(tmp_path / "R"))
    unknown = call("results", "import", str(other), *results)
    assert (unknown.code, "a.json: is none of" in unknown.err) == (2, True)
    assert (
        "did you mean 'trainer-state'"
        in call("results", "import", str(other), "--format", "traner").err
    )
    forced = call(
        "results",
        "import",
        str(write(tmp_path, "b.json", TRAINER)),
        "--format",
        "fms-csv",
        *results,
    )
    assert forced.code == 2
    assert call("results", "import", str(tmp_path / "gone.json"), *results).code == 2
    assert not (tmp_path / "R" / "results.sqlite").exists()


def test_conditions_and_groups_mix_no_imported_row_with_measured_ones(tmp_path: Path) -> None:
    folder = str(tmp_path / "R")
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("a", experiment=make_experiment("accelerated-peft-autogptq")))
    call("results", "import", str(write(tmp_path, "b.csv", CSV)), "--results", folder)

    def listed(*arguments: str) -> list[dict[str, object]]:
        form = ("--results", folder, "--format", "json")
        done = call("results", "list", *arguments, *form)
        assert done.code == 0, done.err
        rows: list[dict[str, object]] = json.loads(done.out)
        return rows

    assert [row["run_id"] for row in listed("--where", "status = ok")] == ["a"]
    assert len(listed("--where", "status = imported")) == 4
    assert len(listed("--where", "provenance.format = fms-csv")) == 4
    # A default of ours is no fact of theirs, and what they state can be asked for.
    assert [row["run_id"] for row in listed("--where", "data.sequence_length > 0")] == ["a"]
    assert len(listed("--where", "resources.devices = 2 and status = imported")) == 2
    groups = {row["stack"]: row for row in listed("--group-by", "stack")}
    both = groups["accelerated-peft-autogptq"]
    assert (both["runs"], both["completed"]) == (2, 1)
    (alone,) = listed("--group-by", "stack", "--where", "run_id = a")
    assert both["tokens_per_second_mean"] == alone["tokens_per_second_mean"]
    assert groups["none"]["tokens_per_second_mean"] is None


def test_settings_of_the_user_are_stored_as_given(tmp_path: Path) -> None:
    path = write(tmp_path, "all_results.json", TRAINER)
    results = ("--results", str(tmp_path / "R"))
    call("results", "import", str(path), "--set", "model.id=mistral-7b", *results)
    shown = call("results", "show", "import-trainer", *results).out
    assert "model.id: mistral-7b" in shown
    assert "was given by the user" in shown


def test_another_setting_or_file_beside_it_is_another_import(tmp_path: Path) -> None:
    path = write(tmp_path, "all_results.json", TRAINER)
    results = ("--results", str(tmp_path / "R"))
    asked = ("results", "import", str(path), *results)
    call(*asked)
    given = (*asked, "--set", "model.id=mistral-7b")
    assert "(was there)" not in call(*given).out
    write(tmp_path, "trainer_state.json", STATE)
    assert "(was there)" not in call(*asked).out
    assert "(was there)" in call(*asked).out
    listed = json.loads(call("results", "list", "--format", "json", *results).out)
    assert len({row["experiment_id"] for row in listed}) == len(listed) == 3


def test_an_import_that_stopped_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (
        "results",
        "import",
        str(write(tmp_path, "b.csv", CSV)),
        "--results",
        str(tmp_path / "R"),
    )

    def full(connection: Connection, record: RunRecord) -> None:
        if record.columns["position"] == 2:
            raise StoreError("the disk is full")
        insert_run(connection, record)

    with monkeypatch.context() as patched:
        patched.setattr(database, "insert_run", full)
        assert "the disk is full" in call(*asked).err
    assert "(was there)" not in call(*asked).out
    with open_store(tmp_path / "R", write=False) as store:
        assert store.count() == 4


def theirs(tmp_path: Path, stack: str) -> Result:
    """An imported row whose stack has the name of a measured stack."""
    row = imported(tmp_path, "b.csv", CSV.replace("accelerated-peft-autogptq", stack))[2]
    return row.model_copy(update={"session": "import-x", "run_id": "import-x-0"})


def disguised(run: Result, **update: object) -> Result:
    """A measured run marked as imported."""
    origin = Provenance(origin="imported", format="fms-csv", file="b.csv")
    return run.model_copy(update={"provenance": origin, **update})


def test_a_bare_name_means_what_was_measured(tmp_path: Path) -> None:
    ours, base = make_experiment("nf4"), make_experiment("lora")
    with open_store(tmp_path / "R", write=True) as store:
        store.add_session(make_session())
        store.add(make_result("a", experiment=base))
        store.add(make_result("b", experiment=ours))
        store.add_session(make_session("import-x"))
        newest = theirs(tmp_path, "nf4").model_copy(update={"started_at": "2027-01-01T00:00:00Z"})
        store.add(newest)
        ((left, right),) = select_pairs("lora", "nf4", store)
        assert [run.run_id for run in (*left, *right)] == ["a", "b"]
        ((alone, _),) = select_pairs("nf4", "a", store, store)  # the newest is imported
        assert [run.run_id for run in alone] == ["b"]
        ((_, named),) = select_pairs("lora", "import-x/nf4", store)
        assert named[0].imported


def test_an_imported_run_is_in_no_verdict_ranking_or_figure() -> None:
    base, other = make_experiment("lora"), make_experiment("nf4")
    fast = (make_rank(seconds=0.01),)
    runs = [make_result(f"a{n}", experiment=base, round=n) for n in range(5)]
    quick = [
        disguised(make_result(f"b{n}", experiment=other, round=n, ranks=fast)) for n in range(5)
    ]
    compared = compare_stored(runs, quick)
    assert compared.ratio is None
    assert compared.verdict == "not tested"
    assert "B was imported from b.csv (fms-csv): it was not measured here" in (
        compared.verdict_reason
    )
    assert compared.b.tokens_per_second is None
    assert compared.b.peak_memory_bytes is None

    planned = [PlannedSummary(experiment=base), PlannedSummary(experiment=other)]
    summary = summarize("peft", "lora", planned, [*runs, *quick], rounds=5)
    row = summary.experiments[1]
    assert (row.ratio, row.tokens_per_second) == (None, None)
    assert any("was imported from b.csv" in reason for reason in row.reasons)
    measured = collect_runs(planned[1], [make_result("b", experiment=other, ranks=fast)], 1)
    assert measured.usable  # the same without the mark


def test_a_measured_row_says_so() -> None:
    assert flat_run(make_result("a"))["provenance"] == "measured"
    assert not make_result("a").imported


def test_a_run_goes_on_as_if_nothing_had_been_imported(tmp_path: Path) -> None:
    """A run and `--resume` of it in a folder with imports count measured rounds alone."""
    path = write(tmp_path, "nulls.yaml", NULLS)
    csv_text = CSV.replace("accelerated-peft-autogptq", "other")
    results = ("--results", str(tmp_path / "R"))
    call("results", "import", str(write(tmp_path, "b.csv", csv_text)), *results)
    done = call("run", str(path), "--quiet", *results)
    assert done.code == 0, done.err
    assert "imported" not in done.out
    compared = call("compare", "baseline", "other", *results)
    assert compared.code == 0
    assert "imported" not in compared.out


def test_scenarios_of_a_folder_are_written_and_names_that_are_wrong_exit_with_2(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "theirs")
    done = call("scenarios", "import", str(folder), "-o", str(tmp_path / "ours"))
    assert done.code == 0, done.err
    assert "accelerated-peft-gptq.yaml: 12 experiments" in done.out
    assert "ep_degree: 8 has no counterpart" in done.err
    wrong = write_folder(tmp_path / "wrong", scenarios=SCENARIOS.replace("- moe-ep1", "- moe-ep2"))
    done = call("scenarios", "import", str(wrong), "-o", str(tmp_path / "o"), "--devices", "1,2,4")
    assert done.code == 2
    assert "'moe-ep2' is the shortname of no configuration" in done.err
    assert "accelerated-peft-gptq.yaml: 18 experiments" in done.out
    refused = call("scenarios", "import", str(wrong), "-o", str(tmp_path / "o"), "--devices", "x")
    assert "expected positive whole numbers" in refused.err


def test_the_guide_s_configuration_is_written_too(tmp_path: Path) -> None:
    path = write(tmp_path, "training_config.json", CONFIG)
    done = call("scenarios", "import", str(path), "-o", str(tmp_path / "ours"))
    assert done.code == 0, done.err
    for family in ("embedding", "text_generation"):
        assert f"training_config-{family}-cpu.yaml: 720 experiments" in done.out


def test_a_file_of_ours_is_recognized_before_a_stranger_s_format_is_imported(
    files: Path, tmp_path: Path
) -> None:
    entry = "[accel_bench.formats]\nmllog = a_stranger:FORMAT\n"
    write(tmp_path, "site/a_stranger.py", "raise ImportError('it was imported')")
    write(tmp_path, "site/a_stranger-1.0.dist-info/METADATA", "Name: a-stranger\nVersion: 1.0\n")
    write(tmp_path, "site/a_stranger-1.0.dist-info/entry_points.txt", entry)
    ask = ["results", "import", str(files / "mlperf.log"), "--results", str(tmp_path / "R")]
    done = call(*ask, PYTHONPATH=str(tmp_path / "site"))
    assert (done.code, done.err, "import-mllog-" in done.out) == (0, "", True)
    address = ["--format", "a-stranger:mllog"]
    done = call(*ask, *address, PYTHONPATH=str(tmp_path / "site"))
    assert (done.code, "'a-stranger:mllog' of a-stranger 1.0 is broken" in done.err) == (2, True)
