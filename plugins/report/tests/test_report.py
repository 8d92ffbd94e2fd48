"""`accel-bench report` writes a page and its Markdown twin of what a session has stored."""

from __future__ import annotations

import re
import shutil
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cli.program import call, write_nulls

from accel_bench.runner.interrupted import attempt_in_progress


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a session that skipped one of its stacks."""
    folder = tmp_path_factory.mktemp("report")
    stacks = "{baseline: [], other: [], absent: []}"
    exclude = "[{when: {stack: absent}, because: it is known to be slow}]"
    scenario = write_nulls(folder, stacks=stacks, exclude=exclude)
    done = call("run", str(scenario), "--quiet", folder=folder)
    assert done.code == 0, done.err
    return folder


@pytest.mark.box
def test_the_newest_session_becomes_a_page(folder: Path) -> None:
    done = call("report", folder=folder)
    assert done.code == 0, done.err
    page = (folder / "accel-bench-report.html").read_text(encoding="utf8")
    assert "3 stacks: 2 measured, 1 skipped" in page
    assert "excluded: it is known to be slow" in page
    assert done.out.startswith("accel-bench-report.html: 0.")


@pytest.mark.box
def test_markdown_alone_is_printed_and_no_page_is_written(folder: Path, tmp_path: Path) -> None:
    done = call("report", "nulls", "--markdown", "-", "--results",
                str(folder / "accel_bench_results"), folder=tmp_path)  # fmt: skip
    assert done.code == 0, done.err
    assert done.out.startswith("## nulls\n\n**no verdict against baseline for other")
    assert "skipped; " in done.out
    assert not list(tmp_path.iterdir())


@pytest.mark.box
def test_neither_page_nor_twin_names_this_machine(folder: Path, tmp_path: Path) -> None:
    page, twin = tmp_path / "page.html", tmp_path / "twin.md"
    arguments = ("report", "--html", str(page), "--markdown", str(twin),
                 "--results", str(folder / "accel_bench_results"))  # fmt: skip
    done = call(*arguments, folder=folder)
    assert done.code == 0, done.err
    texts = [file.read_text(encoding="utf8") for file in (page, twin)]
    for text in texts:
        assert str(folder) not in text and str(tmp_path) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
        assert sys.executable not in text
        assert "--quiet --only other" in text and "on HOST1" in text
    done = call(*arguments, "--with-names", folder=folder)
    assert done.code == 0, done.err
    assert str(folder) in page.read_text(encoding="utf8")


def test_no_page_is_written_with_names_where_nothing_takes_them_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bench.plugins.doors.find_entries", lambda *_: {})
    page = tmp_path / "page.html"
    done = call("report", "--html", str(page), folder=folder)
    assert (done.code, page.exists()) == (2, False)
    assert "nothing installed takes the names of users" in done.err


def test_a_part_of_a_session_is_shown_as_that(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "part.html"
    chosen = ("--where", "stack = other", "--with-names")
    done = call("report", *chosen, "--html", str(page), folder=folder)
    assert done.code == 0, done.err
    text = page.read_text(encoding="utf8")
    assert "1 stack: 1 measured" in text
    assert "only runs where stack = other" in text


def test_a_session_that_still_runs_says_how_far_it_is(folder: Path, tmp_path: Path) -> None:
    results = shutil.copytree(folder / "accel_bench_results", tmp_path / "results")
    with closing(sqlite3.connect(results / "results.sqlite")) as database, database:
        ((session,),) = database.execute("SELECT id FROM sessions")
        database.execute("DELETE FROM runs WHERE stack = 'other'")
    attempt = results / "runs" / session / "other"
    shutil.rmtree(attempt, ignore_errors=True)
    attempt.mkdir()
    (attempt / "job.json").touch()
    shown = ("report", "--with-names", "--markdown", "-", "--results", str(results))
    with attempt_in_progress(attempt):
        during = call(*shown, folder=tmp_path).out
    assert "still running: 1 of 2 runs have ended" in during
    assert "1 measured, 1 unfinished, 1 skipped" in during
    assert "interrupted" not in during.partition("| stack")[0]
    after = call(*shown, folder=tmp_path).out
    assert "still running" not in after and "1 interrupted" in after


def test_errors_name_what_is_missing(folder: Path, tmp_path: Path) -> None:
    done = call("report", "nuls", folder=folder)
    assert done.code == 2 and "nuls" in done.err
    done = call("report", "--results", str(tmp_path / "none"), folder=folder)
    assert done.code == 2 and "none" in done.err
    page = str(tmp_path / "no" / "page.html")
    done = call("report", "--with-names", "--html", page, folder=folder)
    assert done.code != 0 and "no/page.html" in done.err
