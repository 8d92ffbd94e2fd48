"""JSON obeys the limits of YAML, gives the same values, and its errors and keys have places."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.documents.load import load_file, load_json, load_yaml
from accel_bench.errors import ScenarioError
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.find import read_draft

DEPTH = 20_000

HOSTILE = {
    "deep lists": ('{"a":' + "[" * DEPTH + "]" * DEPTH + "}", "nested too deeply"),
    "lists too deep by little": ('{\n"a":' + "[" * 40 + "]" * 40 + "}", "2:.*deeper than 32"),
    "unclosed lists": ('{"a":' + "[" * DEPTH, "nested too deeply"),
    "endless integer": ('{\n "a": ' + "9" * 5000 + "}", "2:7: an integer of 5000 digits"),
    "negative one too long by little": ('{"a": -' + "9" * 31 + "}", "1:7: an integer of 31 digits"),
    "float beyond what is stored": ('{"a": 1e100}', "1:7: 1e100 is too large"),
    "float beyond the largest": ('{"a": [1, 1e400]}', "1:11: 1e400 is too large"),
    "not a number": ('{"a": NaN}', "1:2: nan is not a number"),
    "infinity": ('{"a": -Infinity}', "1:2: -inf is not a number"),
    "duplicate key": ('{"a": 1,\n "b": 2,\n "a": 3}', "3:2: the key 'a' .*second time.*line 1"),
    "duplicate key within": ('{"a": {"b": 1, "b": 2}}', "1:16: the key 'b'"),
    "NUL in a value's escape": ('{"a": "x\\u0000"}', "1:7: holds a NUL"),
    "half a character's escape": ('{"a": "\\ud800"}', "1:10: .*invalid Unicode"),
    "comma behind the last": ('{"a": 1,\n}', "2:1: .*no comma behind the last"),
    "comment": ('{\n// why\n"a": 1}', "2:1: .*no comments"),
    "single quotes": ("{'a': 1}", "1:2: .*double quotes"),
    "second document": ('{"a": 1}\n{"b": 2}', "2:1: Extra data"),
    "not closed": ('{"a": [1, 2', "1:12: "),
    "list at the top": ("[1]", "1:1: expected keys and values, found a list"),
    "text at the top": ('"a"', "1:1: expected keys and values, found text"),
}
"""Text that is no scenario, and what the error says of it."""


@pytest.mark.parametrize("text, problem", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_refused_with_its_place(text, problem):
    with pytest.raises(ScenarioError, match=rf"^f\.json:.*{problem}"):
        load_json(text, "f.json")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**29), 10**29) | st.text('ab{}[],:"\\é😀 \t'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab{,"), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(
    data=st.dictionaries(st.text('ab[]"', min_size=1), PLAIN, max_size=3), indent=st.integers(0, 2)
)
def test_plain_values_survive_being_written_and_read_and_each_has_its_place(data, indent):
    text = json.dumps(data, indent=indent or None, ensure_ascii=False)
    document = load_json(text, "f.json")
    assert document.data == data
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")]
    for location, (line, column) in document.marks.items():
        value = data
        for part in location:
            value = value[part]
        found, _ = json.JSONDecoder().raw_decode(text, starts[line - 1] + column - 1)
        assert found == (location[-1] if isinstance(location[-1], str) else value)


def test_a_json_scenario_is_read_like_the_same_yaml_and_its_errors_have_places(tmp_path):
    scenario = {"name": "twin", "train": {"seed": 3}, "sweep": {"data.seed": [1, 2]}, "slow": None}
    path = tmp_path / "twin.json"
    path.write_text(json.dumps(scenario, indent=2))
    assert load_file(path).data == load_yaml(json.dumps(scenario), "twin.yaml").data == scenario
    path.write_text('{\n  "name": "twin",\n  "train": {"sed": 3}\n}')
    with pytest.raises(ScenarioError, match=r"twin\.json:3:13: unknown key 'train\.sed'"):
        resolve(read_draft(path))


def test_escapes_of_json_and_tabs_are_read():
    text = json.dumps({"a": "😀/\\", "b": [1]}, indent="\t").replace("/", "\\/")
    document = load_json(text, "f.json")
    assert document.data == {"a": "😀/\\", "b": [1]}
    assert document.where(("b", 0)) == "f.json:4:3"


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_file_without_content_is_an_empty_mapping(text):
    assert load_json(text, "f.json").data == {}
