"""What an encoding lacks is escaped: no table and no document is lost."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable

import pytest

from accel_bench.cli.output import print_json, print_rows
from accel_bench.cli.streams import prepare_streams

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
    text = printed(encoding, lambda: print_rows(("name",), rows, "table"))
    assert "plain" in text
    assert ("\u2500" in text) == (encoding == "utf-8")
    assert ("\\u2265" in text) == (encoding != "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_document_stays_valid_json_with_the_same_texts(encoding: str) -> None:
    assert json.loads(printed(encoding, lambda: print_json(NAMES))) == list(NAMES)
