"""An export is imported completely and unchanged, or not at all."""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path

import pytest
from accel_bench_interop import export_import
from accel_bench_interop.export_import import read_export
from sqlalchemy import Connection
from store.exports import call, five_runs
from store.store_factory import change_payload, make_experiment, make_result, make_session
from store.test_queries import RESULTS
from typer.testing import CliRunner

from accel_bench.analysis.compare import compare_stored
from accel_bench.cli.main import app
from accel_bench.errors import StoreError
from accel_bench.result import Provenance, Result
from accel_bench.store import database
from accel_bench.store.database import open_store
from accel_bench.store.records import RunRecord, insert_run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A results folder with five runs."""
    return five_runs(tmp_path)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_an_export_comes_back_equal_and_once(source: Path, tmp_path: Path, form: str) -> None:
    file, target = tmp_path / "export", tmp_path / "target"
    call("results", "export", "--results", source, "--format", form, "--output", file)
    with open_store(target, write=True) as store:
        store.add_session(make_session())
        store.add(RESULTS[0])
    printed = call("results", "import", file, "--results", target)
    assert printed == "4 runs added, 1 there already\n"
    assert call("results", "import", file, "--results", target).startswith("0 runs added, 5")
    with open_store(source, write=False) as one, open_store(target, write=False) as other:
        assert one.results() == [unmarked(result) for result in other.results()]
        assert [row.tokens_per_second for row in one.rows()] == [
            row.tokens_per_second for row in other.rows()
        ]
    listed = json.loads(call("results", "list", "--results", target, "--format", "json"))
    assert [row["run_id"] for row in listed if row["tags"] == ["from-export"]] == list("bdec")
    marks = {row["run_id"]: row["provenance"] for row in listed}
    assert marks == {"a": "measured", **dict.fromkeys("bdec", "exported")}


def unmarked(result: Result) -> Result:
    """The result before its export."""
    return result.model_copy(update={"provenance": Provenance()})


def test_an_export_is_of_imported_and_exported_runs_whatever_it_says(tmp_path: Path) -> None:
    origin = Provenance(origin="imported", format="mllog")
    runs = [make_result("imported", provenance=origin), make_result("measured", round=1)]
    file, target = tmp_path / "file.json", tmp_path / "target"
    file.write_text(json.dumps([run.model_dump(mode="json") for run in runs]))
    call("results", "import", file, "--results", target)
    with open_store(target, write=False) as store:
        assert [row.provenance for row in store.rows()] == ["imported mllog", "exported"]
        moved = store.results()[1].provenance
        assert (moved.file, len(moved.sha256)) == (str(file), 64)
        assert [session.imported for session in store.sessions()] == [True]
    again = tmp_path / "again.json"
    call("results", "export", "--results", target, "--output", again)
    call("results", "import", again, "--results", tmp_path / "third")
    with open_store(tmp_path / "third", write=False) as store:
        assert store.results()[1].provenance == moved


def test_an_exported_run_is_marked_in_a_comparison_and_shown_with_its_file(tmp_path: Path) -> None:
    mark = Provenance(origin="exported", file="theirs.json")
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        moved = [make_result(f"a{n}", round=n, provenance=mark) for n in range(2)]
        here = [make_result(f"b{n}", round=n, experiment=make_experiment("nf4")) for n in range(2)]
        for result in (*moved, *here):
            store.add(result)
    compared = compare_stored(moved, here)
    assert compared.ratio is not None
    assert any("came with the export theirs.json" in text for text in compared.a.reasons)
    shown = call("results", "show", "a0", "--results", tmp_path)
    assert "file: theirs.json" in shown


def test_an_export_names_what_is_corrupt_and_has_the_rest(source: Path, tmp_path: Path) -> None:
    change_payload(source, "a", '"loss":2.0', '"loss":1.0')
    for form in ("json", "csv", "parquet"):
        arguments = ["--results", str(source), "--format", form, "--output", str(tmp_path / form)]
        done = CliRunner().invoke(app, ["results", "export", *arguments], catch_exceptions=False)
        assert done.stderr == "left out as corrupt: a\n"
    kept = list(read_export(tmp_path / "json"))
    assert kept == list(read_export(tmp_path / "parquet"))
    assert [result.run_id for result in kept] == list("bdec")


def test_an_import_that_stops_in_the_middle_has_added_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, target = tmp_path / "export", tmp_path / "target"
    call("results", "export", "--results", source, "--output", file)

    def full(connection: Connection, record: RunRecord) -> None:
        if record.columns["run_id"] == "e":
            raise StoreError("the disk is full")
        insert_run(connection, record)

    with monkeypatch.context() as patched:
        patched.setattr(database, "insert_run", full)
        done = CliRunner().invoke(app, ["results", "import", str(file), "--results", str(target)])
        assert "the disk is full" in str(done.exception)
    with open_store(target, write=False) as store:
        assert (store.rows(), store.sessions()) == ([], [])
    assert call("results", "import", file, "--results", target).startswith("5 runs added, 0")


def test_a_large_list_is_read_run_by_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_import, "PIECE", 7)
    runs = [make_result(f"run-{number}", log_tail="]}, {[") for number in range(3)]
    file = tmp_path / "file.json"
    for indent in (None, 2):
        file.write_text(json.dumps([run.model_dump(mode="json") for run in runs], indent=indent))
        reading = read_export(file)
        assert next(reading) == runs[0]
        assert list(reading) == runs[1:]
    file.write_text(file.read_text()[:-1])
    with pytest.raises(StoreError, match="neither JSON nor Parquet"):
        list(read_export(file))


REFUSED = {
    "csv": ("run_id,session\na,b\n", "neither JSON nor Parquet"),
    "deep": ("[" * 100_000, "neither JSON nor Parquet"),
    "newer": ('[{"schema_version": 99}]', "run 1 is no result that this version can read"),
    "not a list": ("3", "run 1 is no result"),
    "torn Parquet": ("PAR1 and no more", "no Parquet file of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_export_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    file, target = tmp_path / "file", tmp_path / "target"
    file.write_text(content)
    form = ("--format", "accel-bench")
    done = CliRunner().invoke(
        app, ["results", "import", str(file), *form, "--results", str(target)]
    )
    assert isinstance(done.exception, StoreError)
    assert message in str(done.exception)
    assert not target.exists()


def test_one_bad_run_among_good_ones_imports_none(tmp_path: Path) -> None:
    runs = [make_result("good").model_dump(mode="json"), make_result("bad").model_dump(mode="json")]
    runs[1]["seconds"] = "long"
    file = tmp_path / "file.json"
    file.write_text(json.dumps(runs))
    with pytest.raises(StoreError, match=r"run 2 is no result.*nothing was imported"):
        list(read_export(file))
    with pytest.raises(StoreError, match="No such file"):
        list(read_export(tmp_path / "missing.json"))


BOMB = (
    "c-rmUF-ikL6vpwFAq*0>u$d(TQ!L0XDUz5K6a<?zf?yG1W19^N5!9@^iMBa}g-FOP?Cb>bIASS??tq@cKf|w"
    "h?|m>g_(sEVYQ)?>JU%zg+eUSbsz+_K6Oqo-?$>J8I)2$%i=3-^qZ(3ASwlX)58suN?F;|_0000000000000"
    "0000000000000001h|K@Da%1qOC_oc0?=`6pR7$qi%Ra=*NwY*%!a_W10LS>zGi8vG3Sd0BTn;=x-tFQhEKQ"
    "}7bI&ntor{pMH`K{G95nucB8>%BdD4nR7lsC(K(VG@UZ&H@?yXZDAtBd({w0F=S^i%8nzw6p)I8J{6+e=Vc"
)
"""A compressed Parquet file of 18 KB: one row with a text of 600 MB of one letter."""


def test_a_file_that_would_fill_the_memory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(zlib.decompress(base64.b85decode(BOMB)))
    with pytest.raises(StoreError, match=r"bomb: no Parquet.* needs more than 201,326,592 bytes"):
        list(read_export(tmp_path / "bomb"))


def test_a_text_that_is_larger_than_any_run_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value of it would take a hundred bytes of memory."""
    file = tmp_path / "bomb.json"
    good = make_result("good").model_dump_json()
    file.write_text(f"[{good}, {{" + '"schema_version": [' + "[]," * export_import.MAXIMUM_VALUES)
    reading = read_export(file)
    assert next(reading).run_id == "good"
    with pytest.raises(
        StoreError, match=r"bomb\.json: run 2 is larger than any run that is stored"
    ):
        next(reading)
    monkeypatch.setattr(export_import, "MAXIMUM_TEXT", len(good) - 1)
    with pytest.raises(StoreError, match="run 1 is larger than any run that is stored"):
        list(read_export(file))


def test_a_pipe_is_refused_and_so_is_an_export_that_is_still_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (lambda path: list(read_export(path)), export_import.is_export):
        with pytest.raises(StoreError, match="pipe' cannot be read: it is a named pipe"):
            read(tmp_path / "pipe")
    file = tmp_path / "file.json"
    file.write_text(f"[{make_result('a').model_dump_json()}]")
    reading = read_export(file)
    assert next(reading).run_id == "a"
    with file.open("a") as writer:
        writer.write(" ")
    with pytest.raises(StoreError, match=r"file\.json: grows while it is read"):
        next(reading)


def test_letters_of_all_languages_come_back_from_an_export(tmp_path: Path) -> None:
    run = make_result("a", log_tail="\u00e9\u2028\x85\xa0\U0001f600\u4e2d")
    (tmp_path / "file.json").write_text(f"\ufeff [{run.model_dump_json()}\n]", encoding="utf8")
    assert list(read_export(tmp_path / "file.json")) == [run]


@pytest.mark.parametrize("key", ["round", "position", "attempt", "schema_version"])
def test_a_number_that_no_database_holds_is_refused_by_name(tmp_path: Path, key: str) -> None:
    run = {**make_result("a").model_dump(mode="json"), key: 2**64}
    (tmp_path / "file.json").write_text(json.dumps([run]))
    with pytest.raises(StoreError, match=rf"run 1 is no result.*\n?.*{key}.*nothing was imported"):
        list(read_export(tmp_path / "file.json"))
