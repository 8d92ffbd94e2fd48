r"""Text from elsewhere neither acts on a terminal nor hides: `\x1b` is shown."""

from __future__ import annotations

import json

import pytest

from accel_bench.documents.escaping import plain, printable, printable_json

HOSTILE = {
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",
    "a\x08b\x7f": r"a\x08b\x7f",
    "user\u202etxt.exe": r"user\u202etxt.exe",
    "ad\u200bam\ufeff": r"ad\u200bam\ufeff",
    "\u2066left\u2069": r"\u2066left\u2069",
    "\U000e0041tag": r"\U000e0041tag",
    "\udcff": r"\udcff",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_what_acts_or_hides_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert plain(text) == printable(text) == shown


def test_spaces_become_one_kind_and_lines_stay_where_there_may_be_several() -> None:
    assert plain("a\u00a0b\nc\td\re") == "a b c d e"
    assert printable("a\u00a0b\nc\td\re") == "a b\nc\td e"
    assert plain("90 % · größer ≥ 漢字") == "90 % · größer ≥ 漢字"


def test_json_keeps_its_values() -> None:
    document = {"\x9bkey": ["\u202e", "\U000e0041", "größer"]}
    text = printable_json(json.dumps(document, ensure_ascii=False, indent=1))
    assert json.loads(text) == document
    assert text.replace("\n", "").isprintable()
