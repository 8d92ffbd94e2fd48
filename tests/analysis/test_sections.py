"""Sections enter by one door: named ones are shown, and one that fails harms nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.program import call, write_nulls
from documented import install_page

from accel_bench.analysis.sections import GROUP, KIND
from accel_bench.plugins.doors import find_entries

TRUTHLESS = """\
class Array:
    def __bool__(self):
        raise ValueError("the truth value of an array is ambiguous")


def document(summary, rows):
    return Array()
"""


EVERYTHING = """\
from accel_bench.report.table import Column

STACK_COLUMNS = [Column("extra", lambda row: f"of {row.stack}")]
CSV_COLUMNS = [Column("one_more", lambda line: f"{line.summary.scenario}/{line.row.stack}")]


def document(summary, rows):
    return [{"rows": len(rows)}]


def tables(summary, document):
    return []


def notes(summary, document):
    return [f"noted of {document[0]['rows']} rows"]


def details(summary, document, row):
    return [f"told of {row.stack}"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution of the documentation, installed, beside one whose sections are broken."""
    folder = tmp_path_factory.mktemp("sections")
    install_page("sections.md", folder)
    info = folder / "site" / "a_stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-stranger\nVersion: 1.0\n")
    values = {"absent": "no_such_library", "failing": "a_stranger", "shapeless": "a_shape"}
    values |= {
        one: f"a_{one}" for one in ("stopped", "truthless", "tableless", "whole", "noteless")
    }
    entries = "\n".join(f"{name} = {value}" for name, value in values.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}\n")
    (folder / "site" / "a_stranger.py").write_text("def document(summary, rows):\n    1 / 0\n")
    (folder / "site" / "a_shape.py").write_text("def document(summary, rows):\n    return 7\n")
    stopped = "def document(summary, rows):\n    raise SystemExit('no more')\n"
    (folder / "site" / "a_stopped.py").write_text(stopped)
    (folder / "site" / "a_truthless.py").write_text(TRUTHLESS)
    tables = "\n\ndef tables(summary, document):\n    return None\n"
    (folder / "site" / "a_tableless.py").write_text(f"{TRUTHLESS}{tables}")
    (folder / "site" / "a_whole.py").write_text(EVERYTHING)
    noteless = EVERYTHING.replace('return [f"noted', 'return 7, [f"noted')
    (folder / "site" / "a_noteless.py").write_text(noteless)
    return folder / "site"


def test_ours_enter_by_the_door() -> None:
    assert all(entry.is_ours for entry in find_entries(GROUP, KIND).values())


@pytest.mark.box
def test_the_section_of_the_documentation_is_shown_where_it_is_named(
    site: Path, tmp_path: Path
) -> None:
    scenario = str(write_nulls(tmp_path))
    shown = call("run", scenario, "--section", "seconds", folder=tmp_path, PYTHONPATH=str(site))
    assert re.search(r"seconds\nstack +runs +seconds\n─+\nbaseline +\d+ +\d", shown.out), shown.err
    again = ("run", scenario, "--resume", "--format", "json")
    named = call(*again, "--section", "seconds", folder=tmp_path, PYTHONPATH=str(site))
    rows = json.loads(named.out)["sections"]["seconds"]
    assert [row["stack"] for row in rows] == ["baseline", "other"]
    assert json.loads(call(*again, folder=tmp_path, PYTHONPATH=str(site)).out)["sections"] == {}
    # The session says what was shown: its page needs no option.
    page = call("report", "--markdown", "-", folder=tmp_path, PYTHONPATH=str(site))
    assert re.search(r"\| stack \| runs \| seconds \|", page.out), page.out[-3000:]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("failing", "ZeroDivisionError: division by zero"),
        ("shapeless", "its document is no list of mappings"),
        ("stopped", "SystemExit: no more"),
        ("truthless", "its document is no list of mappings"),
        ("tableless", "its function 'tables' returned no tables"),
        ("noteless", "its function 'notes' returned no notes"),
    ],
)
def test_a_section_that_fails_is_named_and_its_runs_are_shown(
    site: Path, tmp_path: Path, name: str, reason: str
) -> None:
    scenario = str(write_nulls(tmp_path))
    done = call("run", scenario, "--section", name, folder=tmp_path, PYTHONPATH=str(site))
    said = " ".join(done.out.split())
    assert done.code == 0
    assert f"left out: the section {name!r} of a-stranger 1.0 is broken: {reason}" in said


def test_a_section_adds_notes_details_and_columns(site: Path, tmp_path: Path) -> None:
    scenario = str(write_nulls(tmp_path))
    named = ("run", scenario, "--resume", "--section", "whole")
    text = call(*named, "--verbose", folder=tmp_path, PYTHONPATH=str(site)).out
    assert "extra" in text and "of other" in text
    assert "noted of 2 rows" in text and "told of baseline" in text
    table = call(*named, "--format", "csv", folder=tmp_path, PYTHONPATH=str(site)).out
    header, first = table.splitlines()[:2]
    assert "one_more" in header and "nulls/baseline" in first


def test_a_section_that_there_is_not_is_refused_before_anything_runs(
    site: Path, tmp_path: Path
) -> None:
    scenario = str(write_nulls(tmp_path))
    done = call("run", scenario, "--section", "second", folder=tmp_path, PYTHONPATH=str(site))
    assert (done.code, done.out) == (2, "")
    assert "no section is called 'second'; did you mean 'seconds'?" in done.err
