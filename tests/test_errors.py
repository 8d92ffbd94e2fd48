"""Errors name what was probably meant, and never more names than can be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli.program import call, write_nulls

from accel_bench.cli.output import print_aside
from accel_bench.errors import did_you_mean


def test_the_nearest_name_is_proposed_and_few_names_are_all_listed() -> None:
    assert did_you_mean("tabel", ["table", "json"]) == "; did you mean 'table'?"
    assert did_you_mean("xyz", ["b", "a"]) == "; known: a, b"
    assert did_you_mean("xyz", []) == ""


def test_of_many_names_three_are_listed_and_the_others_are_counted() -> None:
    names = [f"name-{number}" for number in range(70)]
    text = did_you_mean("2", names)
    assert text.startswith("; known: 70 names, the nearest name-2")
    assert len(text.split(", ")) == 4


@pytest.mark.box
@pytest.mark.parametrize(
    "command",
    [
        ("catalog", "models", "show", "zzz"),
        ("catalog", "devices", "show", "zzz"),
        ("catalog", "stacks", "show", "zzz"),
        ("plugins", "show", "zzz"),
        ("op", "list", "zzz"),
        ("run", "zzz"),
        ("run", "quickstart", "--set", "zzz=1", "--dry-run"),
    ],
)
def test_no_error_lists_all_names(command: tuple[str, ...]) -> None:
    done = call(*command)
    assert done.code == 2
    assert "zzz" in done.err and " names, the nearest " in done.err
    assert len(done.err) < 300


def test_an_error_ends_its_lines_at_blanks_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "error: no folder is called /a/path/that/is/longer/than/its/line here"
    print_aside(text)
    assert capsys.readouterr().err == f"{text}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "24")
    print_aside(f"{text}\n  indented")
    assert capsys.readouterr().err.splitlines() == [
        "error: no folder is",
        "called",
        "/a/path/that/is/longer/than/its/line",
        "here",
        "  indented",
    ]


@pytest.mark.box
def test_one_of_a_thing_is_no_plural(tmp_path: Path) -> None:
    nulls = write_nulls(tmp_path, stacks="{baseline: []}")
    valid = call("scenarios", "check", str(nulls)).out
    assert valid.endswith(": ok, 1 run here\n")
    done = call("run", str(nulls), "--dry-run", folder=tmp_path)
    assert "1 run, " in done.out
    assert "1 runs" not in valid + done.out + done.err
