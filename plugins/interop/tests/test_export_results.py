"""`accel-bench results export` writes all that is stored, and says what it leaves out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from store.store_factory import (
    change_payload,
    store_three_runs,
    three_runs,
)
from typer.testing import CliRunner

from accel_bench.cli.main import app
from accel_bench.errors import StoreError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder that the environment names."""
    store_three_runs(tmp_path)
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(tmp_path))
    return tmp_path


def call(*arguments: str) -> str:
    """Output of a command that must succeed."""
    done = CliRunner().invoke(app, ["results", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
@pytest.mark.usefixtures("folder")
def test_an_export_to_a_folder_is_refused_in_words(form: str) -> None:
    done = CliRunner().invoke(app, ["results", "export", "--format", form, "--output", "."])
    assert isinstance(done.exception, StoreError)
    assert str(done.exception) == ". is a folder; name a file to be written"


@pytest.mark.usefixtures("folder")
def test_exported_json_reads_back_as_the_results() -> None:
    exported = json.loads(call("export", "--format", "json"))
    assert exported == [result.model_dump(mode="json") for result in three_runs()]


@pytest.mark.usefixtures("folder")
def test_exported_csv_has_a_row_for_each_run_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(call("export", "--format", "csv"))))
    assert [row["run_id"] for row in rows] == ["run-a", "run-b", "run-c"]
    assert float(rows[0]["tokens_per_second"]) == 200.0
    assert rows[0]["peak_memory_bytes_rank1"] == "1000"
    assert rows[2]["tokens_per_second"] == ""


@pytest.mark.usefixtures("folder")
def test_rates_losses_and_settings_of_a_run_stand_in_every_listing() -> None:
    (row, *_) = csv.DictReader(io.StringIO(call("export", "--format", "csv")))
    assert float(row["tokens_per_hour"]) == 3600 * float(row["tokens_per_second"])
    # Losses of 2, 1.75 and 1.5 on each rank.
    ranks = float(row["first_loss"]) / 2
    assert float(row["mean_loss"]) == 1.75 * ranks
    assert (float(row["minimum_loss"]), float(row["maximum_loss"])) == (1.5 * ranks, 2 * ranks)
    assert float(row["loss_standard_deviation"]) == 0.25 * ranks
    settings = [row[key] for key in ("micro_batch_size", "learning_rate", "optimizer", "precision")]
    assert settings == ["1", "0.001", "adamw", "as-is"]
    listed = json.loads(call("list", "--format", "json"))
    assert listed[0]["steps_per_second"] == pytest.approx(float(row["steps_per_second"]))
    assert listed[0]["samples_per_second"] > 0 and listed[2]["samples_per_second"] is None
    assert f"mean_loss: {float(row['mean_loss'])}" in call("show", "run-a")


def test_an_export_to_a_file_says_what_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    change_payload(folder, "run-b", "2.13.0", "2.12.0")
    target = tmp_path / "out.json"
    words = ["results", "export", "--output", str(target)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "run-b" in done.stderr
    assert done.stdout == ""
    assert [row["run_id"] for row in json.loads(target.read_text())] == ["run-a", "run-c"]
