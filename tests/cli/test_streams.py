"""What an encoding lacks is escaped: no table and no document is lost."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable

import pytest

from accel_bench.cli import output
from accel_bench.cli.main import prepare_streams
from accel_bench.cli.output import print_json, print_rows
from accel_bench.report import formats
from accel_bench.report.formats import render_json
from accel_bench.report.table import Report, entry

NAMES = ("plain", "fünf ≥ 4", "\U0001f600")


ENCODINGS = ("ascii", "latin-1", "utf-8")


def printed(encoding: str, act: Callable[[], None]) -> str:
    """Return what is printed where stdout has this encoding."""
    found = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(found, encoding=encoding)):
        prepare_streams()
        act()
        return found.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_table_is_printed_in_any_encoding(encoding: str) -> None:
    rows = [{"name": name} for name in NAMES]
    text = printed(encoding, lambda: print_rows([entry("name")], rows, "table"))
    assert "plain" in text
    assert ("\u2500" in text) == (encoding == "utf-8")
    assert ("\\u2265" in text) == (encoding != "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_document_stays_valid_json_with_the_same_texts(encoding: str) -> None:
    assert json.loads(printed(encoding, lambda: print_json(NAMES))) == list(NAMES)


def test_a_long_list_for_programs_is_never_one_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "AT_ONCE", 2)
    pieces: list[str] = []

    def rendered(part: object) -> str:
        pieces.append(render_json(part))
        return pieces[-1]

    monkeypatch.setattr(formats, "render_json", rendered)
    output.print_report(Report(document=[{"run": number} for number in range(5)]), "json")
    assert [len(json.loads(piece)) for piece in pieces] == [2, 2, 1]
    assert json.loads(capsys.readouterr().out) == [{"run": number} for number in range(5)]
