"""Formats enter by one door, ours and those of strangers: imported when a file is held against
them, named when they are broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.program import call, start, write_nulls
from documented import install_page
from interchange.files import CSV, write

STRANGER = """\
from pathlib import Path

from accel_bench import Format

Path(__file__).with_name("imported").touch()


def fail(source):
    raise ZeroDivisionError("a mistake")


def read(source):
    yield "no row"


ONLY_WRITTEN = Format(description="nothing", write=lambda results: [])
FAILING = Format(description="failure", recognizes=fail, read=read)
ROWLESS = Format(description="texts", recognizes=lambda source: "rowless" in source.text, read=read)
"""

ENTRIES = {
    "broken": "no_such_module:FORMAT",
    "failing": "stranger.formats:FAILING",
    "mllog": "stranger.formats:ONLY_WRITTEN",
    "number": "stranger.formats:__doc__",
    "written": "stranger.formats:ONLY_WRITTEN",
    "xrowless": "stranger.formats:ROWLESS",
}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder in which a distribution with formats is installed, most of them broken."""
    site = tmp_path / "site"
    write(site, "stranger/__init__.py", "")
    write(site, "stranger/formats.py", STRANGER)
    info = "a_stranger-1.0.dist-info"
    write(site, f"{info}/METADATA", "Metadata-Version: 2.1\nName: a-stranger\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in ENTRIES.items()]
    write(site, f"{info}/entry_points.txt", "\n".join(["[accel_bench.formats]", *lines]))
    return site


def imported(site: Path) -> bool:
    """Whether the stranger's module was imported."""
    return (site / "stranger" / "imported").exists()


def test_names_are_listed_and_ours_are_read_without_an_import(
    stranger: Path, tmp_path: Path
) -> None:
    listed = " ".join(start("results", "import", "--help", PYTHONPATH=str(stranger)).out.split())
    assert "trainer-state, a-stranger:mllog, broken, failing, number, written, xrowless." in listed
    path = write(tmp_path, "benchmarks.csv", CSV)
    done = call("results", "import", str(path), folder=tmp_path, PYTHONPATH=str(stranger))
    assert (done.code, "fms-csv" in done.out, done.err) == (0, True, "")
    wrong = call("results", "export", "--format", "mlog", PYTHONPATH=str(stranger))
    assert wrong.err == "error: --format: no format is called 'mlog'; did you mean 'mllog'?\n"
    assert not imported(stranger)


def test_broken_formats_are_named_and_hide_no_other(stranger: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "text of nobody")
    done = call("results", "import", str(path), folder=tmp_path, PYTHONPATH=str(stranger))
    assert done.code == 2 and imported(stranger)
    for name, reason in {
        "broken": "ModuleNotFoundError: No module named 'no_such_module'",
        "number": "stranger.formats:__doc__ is no accel_bench.Format",
        "failing": f"{path}: ZeroDivisionError: a mistake",
    }.items():
        assert f"the format {name!r} of a-stranger 1.0 is broken: {reason}" in done.err
    assert "mllog (log of MLPerf)" in done.err and "xrowless (texts)" in done.err
    write(tmp_path, "a.txt", "rowless")
    done = call("results", "import", str(path), folder=tmp_path, PYTHONPATH=str(stranger))
    assert (done.code, f"{path}: begins as texts, but is not: " in done.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["results", "import", "a.txt", "--format", "written"],
            "written (nothing) is written, and not read",
        ),
        (["results", "import", "a.txt", "--format", "xrowless"], "a.txt: is no xrowless (texts)"),
        (["results", "import", "a.txt", "--format", "wrtten"], "did you mean 'written'?"),
        (
            ["results", "import", "a.txt", "--format", "broken"],
            "the format 'broken' of a-stranger 1.0",
        ),
    ],
)
def test_a_format_that_cannot_be_used_so_is_named(
    arguments: list[str], problem: str, stranger: Path, tmp_path: Path
) -> None:
    write(tmp_path, "a.txt", "text of nobody")
    done = call(*arguments, folder=tmp_path, PYTHONPATH=str(stranger))
    assert (done.code, problem in done.err) == (2, True), done.err


def test_the_format_of_the_documentation_is_recognized_read_and_written(tmp_path: Path) -> None:
    site = install_page("formats.md", tmp_path)
    assert call("run", str(write_nulls(tmp_path)), "-q", folder=tmp_path).code == 0
    export = ["results", "export", "--format", "acme-speeds"]
    text = call(*export, folder=tmp_path, PYTHONPATH=str(site)).out
    assert re.fullmatch(r"stack,tokens_per_second\n((baseline|other),\d+\.\d+\n){2}", text), text
    write(tmp_path, "speeds.csv", text)
    read = call(
        "results", "import", "speeds.csv", "--results", "R", folder=tmp_path, PYTHONPATH=str(site)
    )
    assert (read.code, "acme-speeds" in read.out) == (0, True), read.err
    again = call(*export, "--results", "R", folder=tmp_path, PYTHONPATH=str(site))
    assert again.out == text
