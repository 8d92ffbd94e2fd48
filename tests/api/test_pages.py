"""The pages about Python and trackers: their programs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.program import call, surroundings, write_nulls
from fault_plugins.distribution import install

DOCS = Path(__file__).resolve().parents[2] / "docs"


def programs(page: str) -> list[str]:
    """The blocks of Python of a page."""
    text = (DOCS / page).read_text(encoding="utf8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_programs_about_python_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for program in programs("python.md"):
        exec(compile(program, "docs/python.md", "exec"), {})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "no verdict against baseline for other" in printed
    assert "4 2 [2, 2] 4 not tested" in printed


def test_the_tracker_of_the_page_tracks(tmp_path: Path) -> None:
    (source,) = programs("trackers.md")
    install(tmp_path, "accel-bench-lines", {"lines": "Lines"}, source)
    file = write_nulls(tmp_path)
    with surroundings(tmp_path, {"PYTHONPATH": str(tmp_path)}):
        done = call("run", str(file), "--plugin", "lines", "--results", "results", "--quiet")
    assert (done.code, done.err) == (0, "")
    lines = (tmp_path / "results" / "lines.txt").read_text(encoding="utf8").splitlines()
    assert sorted(line.split()[0] for line in lines[:2]) == ["baseline", "other"]
    assert lines[2].startswith("no verdict against baseline")
