"""TOML obeys the limits of YAML, gives the same values, and its errors and keys have places."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.documents.load import load_file, load_yaml
from accel_bench.documents.load_toml import load_toml
from accel_bench.errors import ScenarioError

DEPTH = 20_000
MANY = 120_000

HOSTILE = {
    "deep lists": ("a = " + "[" * DEPTH + "]" * DEPTH, "nested too deeply"),
    "lists too deep by little": ("[t]\na = " + "[" * 40 + "]" * 40, "2:1: nested deeper than 32"),
    "deep inline tables": ("a = " + "{a = " * DEPTH, "nested too deeply"),
    "deep table": ("[" + "a." * DEPTH + "a]", "1:2: nested deeper than 32"),
    "deep key": ("b = 1\n" + "a." * MANY + "a = 1", "2:1: nested deeper than 32"),
    "deep key within": ("b = {" + "a." * MANY + "a = 1}", "1:6: nested deeper than 32"),
    "deep key without a value": ("a." * MANY, "1:1: nested deeper than 32"),
    "deep key with spaces": ("a . " * 60_000 + "a = 1", "1:1: nested deeper than 32"),
    "deep quoted key": (r'"\"".' * 50_000 + "a = 1", "1:1: nested deeper than 32"),
    "deep literal key": ("''." * 80_000 + "a = 1", "1:1: nested deeper than 32"),
    "endless integer": ("a = " + "9" * 5000, "a number too long"),
    "integer too long by little": ("a = 1\nb = -" + "9" * 31, "2:1: an integer of more than 30"),
    "endless hexadecimal integer": ("a = 0x" + "f" * 100_000, "1:1: an integer of more than 30"),
    "date": ("a = 2020-01-01", "1:1: a date is not a value"),
    "time": ("a = 10:00:00", "1:1: a time is not a value"),
    "moment": ("[b]\na = [1979-05-27T07:32:00Z]", "2:1: a datetime is not a value"),
    "infinity": ("[b]\n  a = inf", "2:3: inf is not a number"),
    "not a number": ("a = -nan", "1:1: nan is not a number"),
    "float beyond the largest": ("a = 1e400", "1:1: inf is not a number"),
    "duplicate key": ("a = 1\na = 2", "2:"),
    "duplicate table": ("[a]\nb = 1\n[a]\nc = 2", "3:"),
    "NUL in a value's escape": ('a = "\\u0000"', "1:1: holds a NUL"),
    "NUL in a key's escape": ('[t]\n"x\\u0000" = 1', "holds a NUL"),
    "no value": ("[model]\nid = \n", "2:6: "),
    "unclosed list": ("a = [1,\n2", "2:"),
}
"""Text that is no scenario, and what the error says of it."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text, problem", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_refused_with_its_place(text, problem):
    with pytest.raises(ScenarioError, match=rf"^f\.toml:.*{problem}"):
        load_toml(text, "f.toml")


def test_the_same_scenario_in_both_languages_gives_the_same_values(tmp_path):
    yaml_text = """
name: twin
model: {id: tiny, overrides: {num_hidden_layers: 2}}
train: {learning_rate: 2e-4, gradient_checkpointing: true}
sweep: {train.micro_batch_size: [1, 2]}
exclude: [{when: {stack: a}, because: one}, {when: {stack: b}, because: two}]
"""
    toml_text = """
name = "twin"
model.id = "tiny"
model.overrides = {num_hidden_layers = 2}
[train]
learning_rate = 2e-4
gradient_checkpointing = true
[sweep]
"train.micro_batch_size" = [1, 2]
[[exclude]]
when.stack = "a"
because = "one"
[[exclude]]
when = {stack = "b"}
because = "two"
"""
    path = tmp_path / "twin.toml"
    path.write_text(toml_text)
    assert load_file(path).data == load_yaml(yaml_text, "twin.yaml").data


def test_each_key_has_a_place_also_in_lists_of_tables_and_behind_lists_that_look_like_tables():
    text = """name = "x"
[train]
  learning_rate = 1
"micro.batch" = [
  [1],
]
seed = 2
[[exclude]]
because = "one"
[[exclude]]   # the second
because = "two"
"""
    document = load_toml(text, "f.toml")
    assert document.where(("name",)) == "f.toml:1:1"
    assert document.where(("train",)) == "f.toml:2:1"
    assert document.where(("train", "learning_rate")) == "f.toml:3:3"
    assert document.where(("train", "micro.batch", 0)) == "f.toml:4:1"
    assert document.where(("train", "seed")) == "f.toml:7:1"
    assert document.where(("exclude", 0, "because")) == "f.toml:9:1"
    assert document.where(("exclude", 1)) == "f.toml:10:1"
    assert document.where(("exclude", 1, "because")) == "f.toml:11:1"


def test_words_with_dots_are_not_taken_for_deep_keys():
    sentence = "one.two three. " * 40
    assert load_toml(f'description = "{sentence}"', "f.toml").data == {"description": sentence}


@settings(deadline=None)
@given(st.text(st.sampled_from("ab01.-=[]{}'\"#,_:eT \n\t\0\\é"), max_size=40))
def test_any_text_is_read_or_refused_in_words(text):
    try:
        load_toml(text, "f.toml")
    except ScenarioError as error:
        assert str(error).startswith("f.toml")


WRONG = {
    "[model]\nid = gpt2\n": "2:6: Invalid value",
    "[model]\nid: 'gpt2'\n": "2:3: Expected '='",
    "[model\nid = 1\n": r"1:7: Expected '\]'",
    "a = 1\na = 2\n": "2:6: Cannot overwrite a value",
    "a = [1, 2\n": "Unclosed array",
    "a = 'b\n": "2:1: Expected",
    'a = "b\n': "1:7: Illegal character",
    'a = "C:\\data"\n': "1:10: Unescaped",
    "= 1\n": "1:1: Invalid statement",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_what_is_no_toml_is_refused_with_its_place_and_the_way_out(text, message):
    way_out = "; correct this place .*, or write the scenario as YAML"
    with pytest.raises(ScenarioError, match=rf"^f\.toml:(\d+:\d+: )?{message}.*{way_out}"):
        load_toml(text, "f.toml")
