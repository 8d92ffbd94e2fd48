"""A resolved file: sweeps, zips, exclusions and stacks folded into scenarios, all read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel_bench.errors import ScenarioError
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.sweep import Point, count_points


def points(tmp_path: Path, text: str, **settings: Any) -> list[Point]:
    """Every point of a file with this text."""
    path = tmp_path / "some.yaml"
    path.write_text(text, encoding="utf8")
    file = resolve(read_draft(path), **settings)
    found = list(file.points("cpu"))
    assert count_points(file.scenario) == len(found)
    return found


def test_sweep_points_are_outermost_and_stacks_within_in_written_order(tmp_path: Path) -> None:
    text = "sweep: {train.seed: [1, 2], data.seed: [3, 4]}\nstacks: {b: [], a: []}\n"
    found = points(tmp_path, text)
    assert [(p.scenario.train.seed, p.scenario.data.seed, p.stack.name) for p in found] == [
        (seed, data, stack) for seed in (1, 2) for data in (3, 4) for stack in ("b", "a")
    ]
    assert found[-1].sweep == {"train.seed": 2, "data.seed": 4}


def test_keys_of_zip_move_together_and_count_as_one_axis(tmp_path: Path) -> None:
    text = "zip: {train.seed: [1, 2], data.seed: [3, 4]}\nsweep: {model.id: [x, y]}\n"
    found = points(tmp_path, text)
    assert [(p.scenario.model.id, p.scenario.train.seed, p.scenario.data.seed) for p in found] == [
        ("x", 1, 3),
        ("x", 2, 4),
        ("y", 1, 3),
        ("y", 2, 4),
    ]


def test_without_a_sweep_there_is_one_point_for_each_stack(tmp_path: Path) -> None:
    (point,) = points(tmp_path, "name: x\n")
    assert (point.stack.name, point.sweep) == ("baseline", {})


def test_a_stack_changes_the_work_for_itself_alone(tmp_path: Path) -> None:
    text = "train: {seed: 1}\nstacks: {a: [], b: {set: {train.seed: 2, model.dtype: float16}}}\n"
    a, b = points(tmp_path, text)
    assert (a.scenario.train.seed, b.scenario.train.seed) == (1, 2)
    assert (a.scenario.model.dtype, b.scenario.model.dtype) == ("float32", "float16")
    assert b.stack.settings == {"train.seed": 2, "model.dtype": "float16"}


def test_a_batch_is_worked_out_at_each_point(tmp_path: Path) -> None:
    text = "train: {global_batch_size: 8}\nsweep: {train.micro_batch_size: [1, 2, 4]}\n"
    found = points(tmp_path, text)
    assert [p.scenario.train.gradient_accumulation for p in found] == [8, 4, 2]


def test_a_batch_that_does_not_fit_names_the_point(tmp_path: Path) -> None:
    text = "train: {global_batch_size: 8}\nsweep: {train.micro_batch_size: [2, 3]}\n"
    with pytest.raises(ScenarioError, match=r"stack 'baseline' at train\.micro_batch_size=3"):
        points(tmp_path, text)


def test_an_option_of_a_plugin_in_a_stack_can_be_swept(tmp_path: Path) -> None:
    found = points(tmp_path, "stacks: {a: [x]}\nsweep: {stacks.a.x.bits: [4, 8]}\n")
    assert [p.stack.uses[0].options for p in found] == [{"bits": 4}, {"bits": 8}]


def test_a_whole_slot_can_be_swept(tmp_path: Path) -> None:
    text = "sweep: {optimizer: [adamw, {use: sgd, momentum: 0.9}]}\n"
    found = points(tmp_path, text)
    assert [p.scenario.optimizer.use for p in found] == ["adamw", "sgd"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {seed: 1}\nsweep: {train.seed: [1]}\n", r"2:9: .*also set at .*1:9"),
        ("train: {seed: 1}\nzip: {train.seed: [1]}\n", r"2:7: .*also set at .*1:9"),
        ("sweep: {train.seed: []}\n", r"1:9: 'train\.seed' has no values"),
        ("sweep: {train.seed: [1]}\nzip: {train.seed: [1]}\n", r"is in `sweep` and in `zip`"),
        ("sweep: {train.sed: [1]}\n", r"1:9: unknown key 'train\.sed'; did you mean 'seed'"),
        ("sweep: {train.seed: [1, x]}\n", r"1:9: train\.seed: .*at train\.seed=x"),
        ("sweep: {measure.rounds: [1, 2]}\n", r"1:9: .*belongs to the whole comparison"),
        ("sweep: {name: [a, b]}\n", r"1:9: .*belongs to the whole comparison"),
        ("sweep: {launcher.x: [1]}\n", r"1:9: .*belongs to the whole comparison"),
        ("stacks: {a: {set: {measure.steps: 3}}}\n", r"1:10: a stack cannot set 'measure\.steps'"),
        ("stacks: {a: {set: {train.sed: 3}}}\n", r"1:20: unknown key .*did you mean 'seed'"),
        ("stacks: {a: {set: {train.seed: x}}}\n", r"1:20: train\.seed: .*\(stack 'a'\)"),
        ("stacks: {'a/b': []}\n", r"1:10: stacks\.a/b: .*pattern"),
        ("stacks: {'..': []}\n", r"1:10: stacks\.+: .*pattern"),
    ],
)
def test_a_wrong_axis_or_stack_is_refused_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=message):
        points(tmp_path, text)


# Exclusions.


def test_an_excluded_point_keeps_its_reason(tmp_path: Path) -> None:
    text = (
        "sweep: {train.seed: [1, 2, 3]}\nstacks: {a: [], b: []}\n"
        "exclude:\n- {when: {stack: b, train.seed: [2, 3]}, because: too slow}\n"
        "- {when: {train.seed: 3}, because: unlucky}\n"
    )
    found = {(p.stack.name, p.scenario.train.seed): p.excluded for p in points(tmp_path, text)}
    assert found["a", 2] == found["b", 1] == ()
    assert found["b", 2] == ("too slow",)
    assert found["a", 3] == ("unlucky",)
    assert found["b", 3] == ("too slow", "unlucky")


def test_a_rule_sees_what_a_stack_has_set(tmp_path: Path) -> None:
    text = (
        "stacks: {a: [], b: {set: {model.dtype: float16}}}\n"
        "exclude: [{when: {model.dtype: float16}, because: no}]\n"
    )
    assert [p.excluded for p in points(tmp_path, text)] == [(), ("no",)]


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("{train.sed: 1}", "unknown key 'train.sed'; did you mean 'seed'?"),
        ("{trian.seed: 1}", "unknown key 'trian.seed'"),
        ("{stack: c}", "no stack is called 'c'"),
        ("{stack: [a, c]}", "no stack is called 'c'"),
        ("{stck: a}", "unknown key 'stck'; did you mean 'stack'?"),
    ],
)
def test_a_rule_that_can_never_apply_is_refused(when: str, message: str, tmp_path: Path) -> None:
    text = f"stacks: {{a: []}}\nexclude:\n- {{when: {when}, because: no}}\n"
    with pytest.raises(ScenarioError) as caught:
        points(tmp_path, text)
    assert "some.yaml:3:3: " in str(caught.value)
    assert message in str(caught.value)


def test_a_rule_may_name_an_option_of_a_plugin(tmp_path: Path) -> None:
    rule = "{when: {optimizer.momentum: 0.9}, because: x}"
    text = f"optimizer: {{use: sgd, momentum: 0.9}}\nexclude: [{rule}]\n"
    assert points(tmp_path, text)[0].excluded == ("x",)


# The environment.


@pytest.mark.parametrize(
    "text",
    [
        "environment: {LD_PRELOAD: x}\n",
        "stacks: {a: {set: {environment.LD_PRELOAD: x}}}\n",
        "stacks: {a: {set: {environment: {LD_PRELOAD: x}}}}\n",
        "sweep: {environment.LD_PRELOAD: [x]}\n",
        "sweep: {environment: [{LD_PRELOAD: x}]}\n",
    ],
)
def test_no_way_leads_around_the_list_of_variables(text: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="may not set LD_PRELOAD"):
        points(tmp_path, text)


def test_a_stack_may_set_a_variable_of_the_list(tmp_path: Path) -> None:
    text = "stacks: {a: {set: {environment.OMP_NUM_THREADS: '2'}}}\n"
    assert points(tmp_path, text)[0].scenario.environment == {"OMP_NUM_THREADS": "2"}


def test_a_stack_may_set_any_variable_when_that_is_allowed(tmp_path: Path) -> None:
    text = "stacks: {a: {set: {environment.MINE: x}}}\n"
    (point,) = points(tmp_path, text, allow_environment=True)
    assert point.scenario.environment == {"MINE": "x"}


# Other distributions.


def test_a_ladder_needs_something_installed_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bench.planning.made_stacks.find_entries", lambda *_: {})
    with pytest.raises(ScenarioError, match="1:1: nothing that is installed makes a ladder"):
        points(tmp_path, "ladder: [x]\n")
    assert points(tmp_path, "ladder: []\n")


# Counting and leaving alone.


def test_a_million_points_are_counted_without_being_made(tmp_path: Path) -> None:
    values = list(range(1000))
    draft = Draft("some.yaml", {"sweep": {"train.seed": values, "data.seed": values}})
    file = resolve(draft)
    assert count_points(file.scenario) == 1_000_000
    assert next(file.points("cpu")).scenario.data.seed == 0


def test_resolving_leaves_the_draft_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("model: x\nsweep: {model.id: [a, b]}\nstacks: {s: {set: {train.seed: 1}}}\n")
    draft = read_draft(path)
    list(resolve(draft).points("cpu"))
    assert draft.data == read_draft(path).data


def test_the_baseline_is_written_down_while_all_stacks_are_there(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("stacks: {b: [], a: []}\n")
    assert resolve(read_draft(path)).scenario.baseline == "b"


@pytest.mark.parametrize("kind", ["sweep", "zip"])
def test_an_axis_that_misspells_its_first_key_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ScenarioError, match=r"some.yaml:1:\d+: unknown key .*did you mean 'train'"):
        points(tmp_path, f"{kind}: {{trian.seed: [1, 2]}}\n")


def test_an_exclusion_sees_the_device_that_auto_means(tmp_path: Path) -> None:
    text = "exclude: [{when: {resources.device: cpu}, because: too slow}]\n"
    assert [point.excluded for point in points(tmp_path, text)] == [("too slow",)]


def test_an_exclusion_by_a_key_that_no_experiment_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("exclude: [{when: {model.dtyp: float16}, because: x}]\n")
    file = resolve(read_draft(path))
    with pytest.raises(ScenarioError, match=r"some.yaml:1:\d+: no experiment .* 'model.dtyp'"):
        list(file.points("cpu"))


def test_numbers_in_the_environment_are_texts(tmp_path: Path) -> None:
    (point,) = points(tmp_path, "environment: {OMP_NUM_THREADS: 1}\n")
    assert point.scenario.environment == {"OMP_NUM_THREADS": "1"}


def test_options_that_are_no_mapping_are_an_option_of_that_name(tmp_path: Path) -> None:
    (point,) = points(tmp_path, "adapter: {use: lora, options: 5, r: 8}\n")
    assert point.scenario.adapter.options == {"r": 8, "options": 5}


def test_a_use_that_misspells_use_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="usee"):
        points(tmp_path, "stacks: {a: [{usee: example}]}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("m[odel: {id: x}\n", r":1:1: unknown key 'm\[odel'; did you mean 'model'"),
        ("train: {'se]ed': 1}\n", r":1:9: unknown key 'train.se\]ed'; did you mean 'seed'"),
        ("stacks: {'a[b]': []}\n", r":1:10: "),
        ("stacks: {a: {set: {'train[seed]': 1}}}\n", r"train\[seed\]"),
        ("sweep: {'train[seed]': [1]}\n", r"train\[seed\]"),
        ("exclude: [{when: {'m[': 1}, because: x}]\n", r"m\["),
        ("environment: {'OMP[': 1}\n", r"OMP\["),
        ("train: {int: 1}\n", "unknown key 'train.int'"),
    ],
)
def test_a_key_with_brackets_is_an_unknown_key_like_others(
    text: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=problem):
        points(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (f"measure: {{steps: {'9' * 30}}}\n", "100000"),
        ("measure: {rounds: 1000000000}\n", "10000"),
        ("measure: {warmup: 1000000000}\n", "100000"),
        ("measure: {timeout_seconds: 1e30}\n", "10000000"),
        ("measure: {steps: 50000}\nresources: {devices: 2}\n", "the limit is 100000"),
        ("measure: {steps: 33400}\n", "warm-up 30 .* = 100230 samples; the limit is 100000"),
        ("measure: {warmup: 49980}\nresources: {devices: 2}\n", "= 100080 samples"),
        (f"data: {{sequence_length: {10**18}}}\n", "16777216"),
        (f"sweep: {{data.sequence_length: [{10**18}]}}\n", "16777216"),
        ("resources: {threads: 1000000000}\n", "4096"),
        ("resources: {devices: 1000000}\n", "1024"),
        (f"train: {{micro_batch_size: {10**18}}}\n", "1000000"),
        (f"train: {{global_batch_size: {10**18}}}\n", "1000000"),
        (f"train: {{seed: {10**25}}}\n", "9223372036854775808"),
    ],
)
def test_a_number_that_no_machine_can_work_with_is_refused_with_the_limit(
    text: str, limit: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=rf"some.yaml:\d.*{limit}"):
        points(tmp_path, text)
