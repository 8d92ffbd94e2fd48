"""Formats by entry point, accel-bench's and third parties': imported when tried on a file, and
reported when broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.program import call, start, surroundings, write_nulls
from documented import install_page

from accel_bench.errors import PluginError
from accel_bench.interchange import export_lines

STRANGER = """\
from pathlib import Path

from accel_bench import Format, ImportedRow

Path(__file__).with_name("imported").touch()


def fail(source):
    raise ZeroDivisionError("a mistake")


def read(source):
    if "rowless" in source.text:
        yield "no row"
    if "late" in source.text:
        raise RuntimeError("a mistake")
    yield ImportedRow(key="one", seconds="long" if "wrong" in source.text else 1.0)


FAILING = Format(description="failure", recognizes=fail, read=read)
def stop(found):
    raise SystemExit("no more")


READ = Format(
    description="texts",
    recognizes=lambda source: "text" in source.text,
    read=read,
    repeats=stop,
)
NUMBERS = Format(description="numbers", write=lambda results: [1])
STOPPED = Format(description="nothing", write=stop)
WRITTEN = Format(description="nothing", write=lambda results: [])
"""

ENTRIES = {
    "broken": "no_such_module:FORMAT",
    "failing": "stranger.formats:FAILING",
    "number": "stranger.formats:__doc__",
    "numbers": "stranger.formats:NUMBERS",
    "read": "stranger.formats:READ",
    "stopped": "stranger.formats:STOPPED",
    "written": "stranger.formats:WRITTEN",
}


def write(folder: Path, name: str, text: str) -> Path:
    """Write one file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    return path


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
    """Return whether the third party's module was imported."""
    return (site / "stranger" / "imported").exists()


def test_names_are_listed_without_an_import(stranger: Path) -> None:
    listed = " ".join(start("results", "import", "--help", PYTHONPATH=str(stranger)).out.split())
    assert "broken, failing, number, numbers, read, stopped, written." in listed
    wrong = call("results", "export", "--format", "wrtten", PYTHONPATH=str(stranger))
    assert wrong.err == "error: --format: no format is called 'wrtten'; did you mean 'written'?\n"
    assert not imported(stranger)


def test_broken_formats_are_named_and_hide_no_other(stranger: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "text of a stranger")
    reasons = {
        "broken": "ModuleNotFoundError: No module named 'no_such_module'",
        "number": "stranger.formats:__doc__ is no accel_bench.Format",
        "failing": f"{path}: ZeroDivisionError: a mistake",
    }
    ask = ["results", "import", str(path)]
    done = call(*ask, folder=tmp_path, PYTHONPATH=str(stranger))
    assert (done.code, "import-read-" in done.out) == (0, True), done.err
    for name, reason in reasons.items():
        assert f"the format {name!r} of a-stranger 1.0 is broken: {reason}" in done.err
    path.write_text("of nobody")
    done = call(*ask, folder=tmp_path, PYTHONPATH=str(stranger))
    assert (done.code, "is none of " in done.err, "read (texts)" in done.err) == (2, True, True)
    assert all(reason in done.err for reason in reasons.values())
    path.write_text("text, but wrong")
    done = call(*ask, folder=tmp_path, PYTHONPATH=str(stranger))
    assert "the format read reads what no result may be: seconds: " in done.err and done.code == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text, but rowless", "it reads 'no row', which is no ImportedRow"),
        ("text, but late", "RuntimeError: a mistake"),
        ("text of a folder", "SystemExit: no more"),
    ],
)
def test_a_format_that_fails_with_a_file_is_named_and_the_file(
    text: str, problem: str, stranger: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "files", "a.txt", text)
    asked = path.parent if "folder" in text else path
    done = call("results", "import", str(asked), folder=tmp_path, PYTHONPATH=str(stranger))
    assert f"the format 'read' of a-stranger 1.0 is broken: {path}: {problem}\n" in done.err
    assert done.code == 2


@pytest.mark.parametrize(
    ("form", "problem"),
    [("stopped", "SystemExit: no more"), ("numbers", "it writes 1, which is no text")],
)
def test_a_format_that_fails_with_runs_is_named(form: str, problem: str, stranger: Path) -> None:
    with (
        surroundings(stranger, {"PYTHONPATH": str(stranger)}),
        pytest.raises(PluginError, match=f"{form}' of a-stranger 1.0 is broken: {problem}"),
    ):
        [*export_lines([], form)]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("written", "written (nothing) is written, and not read"),
        ("read", "a.txt: is no read (texts)"),
        ("wrtten", "did you mean 'written'?"),
        ("broken", "the format 'broken' of a-stranger 1.0 is broken: ModuleNotFoundError"),
    ],
)
def test_a_format_that_cannot_read_a_file_is_named(
    form: str, problem: str, stranger: Path, tmp_path: Path
) -> None:
    write(tmp_path, "a.txt", "of nobody")
    ask = ["results", "import", "a.txt", "--format", form]
    done = call(*ask, folder=tmp_path, PYTHONPATH=str(stranger))
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
