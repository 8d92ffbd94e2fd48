"""Drafts: files merged, named stacks looked up, dotted keys set, each value with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel_bench.documents import presets
from accel_bench.errors import ScenarioError
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.draft import Draft, read_stack
from accel_bench.scenario.find import find_drafts, read_draft


def write(folder: Path, **files: str) -> Path:
    """Write files named by their keys; return the path of the last one."""
    path = folder
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf8")
    return path


# Errors with their place.


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("nam: x\n", ":1:1", "unknown key 'nam'; did you mean 'name'?"),
        ("train:\n  sed: 1\n", ":2:3", "unknown key 'train.sed'; did you mean 'seed'?"),
        ("name: x\ntrain: {seed: many}\n", ":2:9", "train.seed"),
        ("stacks:\n  a: [{use: x}, {option: 1}]\n", ":2:17", "stacks.a.use.1"),
        ("stacks:\n  a: {sett: {}}\n", ":2:7", "unknown key 'stacks.a.sett'; did you mean 'set'?"),
        ("measure:\n  steps: -1\n", ":2:3", "measure.steps"),
        ("baseline: b\nstacks: {a: []}\n", ":1:1", "no stack is called 'b'"),
        ("zip: {train.seed: [1, 2], data.seed: [1]}\n", ":1:1", "equally many values"),
    ],
)
def test_an_error_names_file_line_and_column(
    text: str, place: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, some=text)
    with pytest.raises(ScenarioError) as caught:
        resolve(read_draft(path))
    assert str(caught.value).startswith(f"{path}{place}: ")
    assert message in str(caught.value)


def test_every_problem_of_a_file_gets_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, some="nam: x\nslow: 3\ntrain: {sed: 1}\n")
    with pytest.raises(ScenarioError) as caught:
        resolve(read_draft(path))
    assert len(str(caught.value).splitlines()) == 3


def test_an_error_in_a_base_names_the_base(tmp_path: Path) -> None:
    path = write(tmp_path, base="train:\n  sed: 1\n", some="extends: base.yaml\n")
    with pytest.raises(ScenarioError, match=r"base\.yaml:2:3: unknown key 'train\.sed'"):
        resolve(read_draft(path))


# extends


def test_mappings_are_merged_key_by_key_and_all_else_is_replaced(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        base="train: {seed: 1, learning_rate: 0.5}\nmetrics: [memory, other]\nsweep: {a: [1, 2]}\n",
        some="extends: base.yaml\ntrain: {seed: 2}\nmetrics: [memory]\nsweep: {a: [3]}\n",
    )
    data = read_draft(path).data
    assert data["train"] == {"seed": 2, "learning_rate": 0.5}
    assert data["metrics"] == ["memory"]
    assert data["sweep"] == {"a": [3]}
    assert "extends" not in data


def test_of_several_bases_the_later_one_wins_and_the_file_over_both(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        one="train: {seed: 1, learning_rate: 1.0, max_grad_norm: 1.0}\n",
        two="train: {seed: 2, learning_rate: 2.0}\n",
        some="extends: [one.yaml, two.yaml]\ntrain: {seed: 3}\n",
    )
    assert read_draft(path).data["train"] == {
        "seed": 3,
        "learning_rate": 2.0,
        "max_grad_norm": 1.0,
    }


def test_a_chain_is_followed_from_folder_to_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep", bottom="name: bottom\ntrain: {seed: 1}\n")
    write(tmp_path, middle="extends: deep/bottom.yaml\nname: middle\n")
    path = write(tmp_path, top="extends: middle.yaml\nslow: true\n")
    assert read_draft(path).data == {"name": "middle", "train": {"seed": 1}, "slow": True}


def test_a_shipped_scenario_can_be_extended_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, mine="extends: quickstart\nmeasure: {steps: 4}\n")
    file = resolve(read_draft(path)).scenario
    assert (file.measure.steps, file.measure.warmup) == (4, 3)
    assert "torch-compile" in file.stacks


@pytest.mark.parametrize(
    "files",
    [
        {"a": "extends: a.yaml\n"},
        {"b": "extends: a.yaml\n", "a": "extends: b.yaml\n"},
        {"c": "extends: a.yaml\n", "b": "extends: c.yaml\n", "a": "extends: b.yaml\n"},
    ],
)
def test_a_circle_is_refused_and_shown(files: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path, **files)
    with pytest.raises(ScenarioError, match=r"goes in a circle: .*a\.yaml -> .*a\.yaml"):
        read_draft(path)


def test_a_base_used_twice_is_no_circle(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        root="train: {seed: 9}\n",
        left="extends: root.yaml\n",
        right="extends: root.yaml\n",
        some="extends: [left.yaml, right.yaml]\n",
    )
    assert read_draft(path).data == {"train": {"seed": 9}}


def test_an_endless_chain_is_cut_off(tmp_path: Path) -> None:
    files = {f"n{i}": f"extends: n{i + 1}.yaml\n" for i in reversed(range(20))}
    with pytest.raises(ScenarioError, match="more than 16 files"):
        read_draft(write(tmp_path, **files))


def test_a_missing_base_is_named_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, some="name: x\nextends: quickstrat\n")
    with pytest.raises(ScenarioError, match=r"some\.yaml:2:1: .*did you mean 'quickstart'\?"):
        read_draft(path)


@pytest.mark.parametrize("value", ["3", "{a: b}", "[1]", "[[a.yaml]]"])
def test_extends_is_a_file_or_a_list_of_them(value: str, tmp_path: Path) -> None:
    path = write(tmp_path, some=f"extends: {value}\n")
    with pytest.raises(ScenarioError, match=r"some\.yaml:1:1: `extends` is a file, or a list"):
        read_draft(path)


def test_reading_a_file_changes_none_of_what_it_extends(tmp_path: Path) -> None:
    write(tmp_path, base="train: {seed: 1}\n")
    path = write(tmp_path, some="extends: base.yaml\n")
    draft = read_draft(path)
    draft.set("train.seed", 5, "here")
    assert read_draft(path).data == {"train": {"seed": 1}}


# Named stacks.


def test_a_stack_in_any_spelling_is_spelt_out(tmp_path: Path) -> None:
    text = "stacks: {a: [x, {use: y, k: 1}], b: null, c: {set: {train.seed: 1}, use: [x]}}\n"
    stacks = read_draft(write(tmp_path, some=text)).data["stacks"]
    assert stacks["a"] == {"use": ["x", {"use": "y", "k": 1}]}
    assert stacks["b"] == {"use": []}
    assert stacks["c"] == {"set": {"train.seed": 1}, "use": ["x"]}


@pytest.mark.parametrize("folder", [".", "stacks"])
def test_a_named_stack_is_found_beside_the_file(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    write(tmp_path / folder, mine="use: [{use: x, k: 1}]\nset: {train.seed: 3}\n")
    file = resolve(read_draft(write(tmp_path, some="stacks: {a: mine}\n"))).scenario
    assert file.stacks["a"].set == {"train.seed": 3}
    assert file.stacks["a"].use[0].options == {"k": 1}


def test_a_named_stack_comes_from_the_samples_else(tmp_path: Path) -> None:
    file = resolve(
        read_draft(write(tmp_path, some="stacks: {a: activation-checkpointing}\n"))
    ).scenario
    assert file.stacks["a"].set == {"train.gradient_checkpointing": True}


def test_a_stack_beside_the_file_wins_over_a_sample(tmp_path: Path) -> None:
    write(tmp_path, **{"torch-compile": "set: {train.seed: 4}\n"})
    file = resolve(read_draft(write(tmp_path, some="stacks: {a: torch-compile}\n"))).scenario
    assert file.stacks["a"].set == {"train.seed": 4}


def test_an_unknown_stack_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, some="stacks:\n  a: torch-compiel\n")
    with pytest.raises(ScenarioError, match=r"some\.yaml:2:3: .*did you mean 'torch-compile'\?"):
        read_draft(path)


def test_a_plugin_s_samples_are_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "with_samples"
    (package / "sample_configurations" / "stacks").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    write(package / "sample_configurations" / "stacks", brought="set: {train.seed: 8}\n")
    info = tmp_path / "with_samples-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: with-samples\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[accel_bench.samples]\nany = with_samples\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "brought" in presets.find_presets("stacks")
    assert read_stack(presets.preset_path("stacks", "brought")).set == {"train.seed": 8}


# Setting dotted keys.


def draft(**data: Any) -> Draft:
    """A draft of plain data."""
    return Draft("some.yaml", data)


def test_a_slot_written_as_a_bare_name_becomes_a_mapping_when_a_key_is_set() -> None:
    some = draft(model="x")
    some.set("model.id", "gpt2", "here")
    assert some.data == {"model": {"use": "x", "id": "gpt2"}}
    assert some.where(("model", "id")) == "here"


def test_setting_a_key_makes_the_mappings_on_its_way() -> None:
    some = draft()
    some.set("model.overrides.num_hidden_layers", 2, "here")
    assert some.get("model.overrides.num_hidden_layers") == 2
    assert some.get("model.overrides.num_hidden_layers.x") is None
    assert some.get("model.nothing.here") is None


def test_an_option_of_a_plugin_in_a_stack_is_reached_by_names() -> None:
    some = draft(stacks={"a": {"use": ["x", {"use": "y", "k": 1}]}})
    some.set("stacks.a.x.bits", 4, "here")
    some.set("stacks.a.y.inner.deep", True, "here")
    assert some.data["stacks"]["a"]["use"] == [
        {"use": "x", "bits": 4},
        {"use": "y", "k": 1, "inner": {"deep": True}},
    ]


def test_a_whole_stack_can_be_set_in_any_spelling() -> None:
    some = draft(stacks={"a": {"use": []}})
    some.set("stacks.b", ["x"], "here")
    assert some.data["stacks"]["b"] == {"use": ["x"]}
    some.set("stacks", {"c": None}, "here")
    assert some.data["stacks"] == {"c": {"use": []}}


@pytest.mark.parametrize("kind", ["sweep", "zip"])
def test_what_follows_sweep_is_one_dotted_key(kind: str) -> None:
    some = draft()
    some.set(f"{kind}.train.seed", [1, 2], "here")
    assert some.data == {kind: {"train.seed": [1, 2]}}
    assert some.where((kind, "train.seed")) == "here"


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "sweep.", "stacks."])
def test_a_key_with_an_empty_part_is_refused(key: str) -> None:
    with pytest.raises(ScenarioError, match="is not a dotted key"):
        draft().set(key, 1, "here")


def test_a_value_cannot_be_given_keys() -> None:
    with pytest.raises(ScenarioError, match="'steps' holds a value"):
        draft(measure={"steps": 3}).set("measure.steps.x", 1, "here")


# Several scenarios in one file.

SEVERAL = """\
defaults:
  model: {id: tiny-llama-cpu}
  stacks: {plain: [], checked: [activation-checkpointing]}
scenarios:
  - name: short
    data: {sequence_length: 64}
  - name: long
    model: {dtype: bfloat16}
    stacks: {checked: null}
"""


def test_a_file_holds_several_scenarios_over_its_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, many=SEVERAL)
    short, long = (resolve(draft).scenario for draft in find_drafts([str(path)]))
    assert (short.name, short.data.sequence_length, [*short.stacks]) == (
        "short",
        64,
        ["plain", "checked"],
    )
    assert (long.model.id, long.model.dtype, [*long.stacks]) == (
        "tiny-llama-cpu",
        "bfloat16",
        ["plain"],
    )
    folder = [draft.get("name") for draft in find_drafts([str(tmp_path)])]
    assert folder == ["short", "long"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scenarios:\n  - name: a\n  - name: a\n", r":3:5: each of `scenarios` has a name"),
        ("scenarios:\n  - {}\n", r":2:5: each of `scenarios` has a name"),
        ("scenarios: [{name: a}]\nmodel: x\n", r":2:1: beside `scenarios` a file has `defaults`"),
        ("scenarios: []\n", r"`scenarios` is a list of scenarios"),
        ("scenarios: [{name: a}]\ndefaults: 3\n", r"`defaults` what they share"),
    ],
)
def test_a_file_of_several_that_is_wrong_says_where(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=message):
        find_drafts([str(write(tmp_path, many=text))])


def test_an_error_of_one_of_several_has_its_own_place(tmp_path: Path) -> None:
    path = write(tmp_path, many="scenarios:\n  - name: a\n    train: {sed: 1}\n")
    (draft,) = find_drafts([str(path)])
    with pytest.raises(ScenarioError, match=r"many.yaml:3:13: unknown key 'train.sed'"):
        resolve(draft)
