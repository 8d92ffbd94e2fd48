"""Rules between options and another program's settings, in both directions."""

from __future__ import annotations

import pytest
from accel_bench_export.rules import Expression, Rule, recognize, translate, unread

COMPILE = [
    Rule(
        when={"backend": ["inductor", "eager"]},
        set={"torch_compile": True, "torch_compile_backend": "{backend}", "mode": "{mode}"},
    ),
    Rule(when={"scope": "block"}, note="compiles the model, and here by {scope}"),
]


def test_an_option_stands_in_its_place_and_one_without_a_value_leaves_its_setting_out() -> None:
    found = translate(COMPILE, {"backend": "eager", "mode": None, "scope": "block"})
    assert found.settings == {"torch_compile": True, "torch_compile_backend": "eager"}
    assert found.notes == ["compiles the model, and here by block"]
    assert found.covered == {"backend", "mode", "scope"}


def test_a_rule_on_an_option_that_is_not_there_does_not_hold() -> None:
    assert translate([Rule(when={"limit": None}, set={"max_norm": 0})], {}).settings == {}


@pytest.mark.parametrize(
    ("rule", "options", "settings"),
    [
        (Rule(set={"beta1": "{betas.0}", "beta2": "{betas.1}"}), {"betas": [0.9, 0.95]},
         {"beta1": 0.9, "beta2": 0.95}),
        (Rule(set={"target": "{names|,}"}), {"names": ["q", "v"]}, {"target": "q,v"}),
        (Rule(set={"data": {"path": "{path}", "kind": "json"}}), {"path": "a"},
         {"data": {"path": "a", "kind": "json"}}),
    ],
)  # fmt: skip
def test_settings_are_read_back_as_the_options_that_made_them(
    rule: Rule, options: dict[str, object], settings: dict[str, object]
) -> None:
    assert translate([rule], options).settings == settings
    assert recognize([rule], settings) == (options, set(settings))


def test_a_rule_whose_fixed_settings_differ_is_not_recognized() -> None:
    assert recognize(COMPILE, {"torch_compile": False, "torch_compile_backend": "eager"}) == (
        {},
        set(),
    )


def test_an_expression_is_a_rules_own_and_never_an_options_value() -> None:
    rule = Rule(set={"policy": "=FullAC.Config()", "name": "{name}"})
    found = translate([rule], {"name": "=exit(3)"}).settings
    assert isinstance(found["policy"], Expression) and found["policy"] == "FullAC.Config()"
    assert type(found["name"]) is str and found["name"] == "=exit(3)"


def test_doubled_braces_are_the_programs_own() -> None:
    rule = Rule(set={"type": {"field": "{prompt}", "format": "{{instruction}}\n{{input}}"}})
    settings = {"type": {"field": "q", "format": "{instruction}\n{input}"}}
    assert translate([rule], {"prompt": "q"}).settings == settings
    assert recognize([rule], settings) == ({"prompt": "q"}, {"type"})
    assert recognize([rule], {"type": {"field": "q", "format": "{input}"}}) == ({}, set())
    assert recognize([Rule(set={"format": "{{a}}"})], {"format": "{a}"}) == ({}, {"format"})


NAMES = [
    Rule(when={"prompt.0": None}, set={"field": "{prompt}"}),
    Rule(unless={"prompt.0": None}, set={"fields": {"one": "{prompt.0}", "two": "{prompt.1}"}}),
]


@pytest.mark.parametrize(
    ("prompt", "settings"),
    [("q", {"field": "q"}), (["q", "r"], {"fields": {"one": "q", "two": "r"}})],
)
def test_a_rule_asks_whether_an_option_is_a_list(
    prompt: object, settings: dict[str, object]
) -> None:
    assert translate(NAMES, {"prompt": prompt}).settings == settings
    options, used = recognize(NAMES, settings)
    assert (options["prompt"], used) == (prompt, settings.keys())


def test_parts_of_a_setting_that_a_rule_does_not_name_are_found() -> None:
    given = [
        {"path": "a", "split": "train", "type": {"field": "q", "roles": ["x"]}, "shards": None}
    ]
    shape = [{"path": "{path}", "type": {"field": "{prompt}"}}]
    assert [*unread(shape, given, "datasets")] == ["datasets[0].split", "datasets[0].type.roles"]


def test_a_rule_that_reads_one_option_as_two_values_is_not_recognized() -> None:
    rule = Rule(set={"max_length": "{length}", "multiple": "{length}"})
    assert recognize([rule], {"max_length": 64, "multiple": 8}) == ({}, set())
    assert recognize([rule], {"max_length": 64, "multiple": 64})[0] == {"length": 64}


def test_the_first_alternative_of_a_condition_is_taken_unless_one_is_known() -> None:
    rule = Rule(when={"kind": ["a", "b"]}, set={"fast": True})
    assert recognize([rule], {"fast": True})[0] == {"kind": "a"}
    named = Rule(when={"kind": ["a", "b"]}, set={"fast": True, "kind": "{kind}"})
    assert recognize([named], {"fast": True, "kind": "b"})[0] == {"kind": "b"}
    assert recognize([named], {"fast": True, "kind": "c"}) == ({}, set())


FORMATS = [
    Rule(when={"path": ["*.jsonl", "*.json"]}, set={"data": {"kind": "json", "file": "{path}"}}),
    Rule(when={"path": "*.parquet"}, set={"data": {"kind": "parquet", "file": "{path}"}}),
    Rule(unless={"path": ["*.jsonl", "*.json", "*.parquet"]}, note="{path} is a folder"),
]


@pytest.mark.parametrize(
    ("path", "kind"), [("a/b.jsonl", "json"), ("a.parquet", "parquet"), ("a", None)]
)
def test_a_star_in_a_condition_stands_for_any_letters(path: str, kind: str | None) -> None:
    found = translate(FORMATS, {"path": path})
    assert found.settings == ({"data": {"kind": kind, "file": path}} if kind else {})
    assert found.notes == ([] if kind else ["a is a folder"])


def test_a_condition_with_a_star_is_not_asked_of_what_is_read() -> None:
    settings = {"data": {"kind": "json", "file": "a"}}
    assert recognize(FORMATS, settings) == ({"path": "a"}, {"data"})
