"""The ladder: stacks that differ by one item, in a fixed order, from every spelling of an item."""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from accel_bench_ladder.items import MAXIMUM_ITEMS
from accel_bench_ladder.stacks import Ladder, expand_ladder
from cli.program import write_nulls
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import make_plan
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.experiment import identity_of
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import STACK_NAME, Stack
from accel_bench.scenario.sweep import Point, count_points


def spelt_out(*items: Any, **data: Any) -> tuple[Draft, Ladder]:
    """The draft of a file with this ladder, its stacks spelt out."""
    draft = Draft("some.yaml", {"ladder": list(items), **data})
    ladder = expand_ladder(draft)
    assert ladder is not None
    return draft, ladder


def uses(draft: Draft, stack: str) -> list[dict[str, Any]]:
    """What a stack uses."""
    found: list[dict[str, Any]] = draft.data["stacks"][stack]["use"]
    return found


def points(tmp_path: Path, text: str) -> list[Point]:
    """Every point of a file with this text."""
    path = tmp_path / "some.yaml"
    path.write_text(text, encoding="utf8")
    file = resolve(read_draft(path))
    found = list(file.points("cpu"))
    assert count_points(file.scenario) == len(found)
    return found


def refusal(tmp_path: Path, text: str) -> str:
    """What is said of a file that is refused."""
    with pytest.raises(ScenarioError) as caught:
        points(tmp_path, text)
    return str(caught.value)


# Properties of every ladder.

switches = st.sampled_from([f"plugin{p}.option{o}" for p in range(3) for o in range(3)])
settings = st.integers(0, 5).map(lambda n: {"set": {f"train.key{n}": n}})
ladders = st.lists(switches | settings, min_size=1, max_size=8, unique_by=json.dumps)


@given(ladders)
def test_n_items_give_at_most_1_and_n_and_n_stacks_no_two_of_them_alike(items: list[Any]) -> None:
    found = spelt_out(*items)[0].data["stacks"]
    assert len(found) <= 1 + len(items) + len(items)
    assert len({json.dumps(stack, sort_keys=True) for stack in found.values()}) == len(found)


@given(ladders)
def test_neighbours_differ_by_one_item_and_so_do_leave_one_outs_from_all(items: list[Any]) -> None:
    _, ladder = spelt_out(*items)
    held = [set(subsets[0]) for subsets in ladder.subsets.values()]
    rungs, rest = held[: len(items) + 1], held[len(items) + 1 :]
    assert rungs[0] == set()
    for number, (below, above) in enumerate(pairwise(rungs)):
        assert above - below == {number}
        assert below <= above
    assert all(len(rungs[-1] - less) == 1 and less < rungs[-1] for less in rest)
    known = {frozenset(one) for subsets in ladder.subsets.values() for one in subsets}
    assert {frozenset(rungs[-1] - {number}) for number in range(len(items))} <= known


@given(ladders)
def test_a_stack_holds_what_its_items_say_and_switches_the_others_off(items: list[Any]) -> None:
    draft, ladder = spelt_out(*items)
    for name, subsets in ladder.subsets.items():
        options = {use["use"]: use for use in uses(draft, name)}
        for number, item in enumerate(items):
            holds = number in subsets[0]
            if isinstance(item, dict):
                assert (item["set"].items() <= draft.data["stacks"][name]["set"].items()) == holds
            else:
                plugin, option = item.split(".")
                assert options.get(plugin, {option: False})[option] is holds


@given(ladders)
def test_a_plugin_stands_once_and_always_in_the_same_order(items: list[Any]) -> None:
    draft, ladder = spelt_out(*items)
    order = [use["use"] for use in uses(draft, list(ladder.subsets)[len(items)])]
    assert len(set(order)) == len(order)
    for name in ladder.subsets:
        names = [use["use"] for use in uses(draft, name)]
        assert names == [plugin for plugin in order if plugin in names]


@given(ladders)
def test_a_ladder_is_spelt_out_the_same_each_time_and_leaves_the_draft_alone(
    items: list[Any],
) -> None:
    draft = Draft("some.yaml", {"ladder": items, "stacks": {"other": {"use": ["x"]}}})
    before = copy.deepcopy(draft)
    assert resolve(draft) == resolve(draft)
    assert draft == before


@given(st.lists(st.text("ab.+-_ 9é", min_size=1, max_size=70), min_size=1, max_size=5, unique=True))
def test_every_name_is_one_that_a_stack_may_have_and_holds_no_dot(keys: list[str]) -> None:
    draft, _ = spelt_out(*({"set": {key: 1}} for key in keys))
    for name in draft.data["stacks"]:
        assert re.fullmatch(STACK_NAME, name)
        assert "." not in name


# What is made of the items.


def test_the_rungs_come_first_then_everything_without_one_then_the_other_stacks() -> None:
    draft, _ = spelt_out("a.x", "b", "train.y", stacks={"other": {"use": ["c"]}})
    assert list(draft.data["stacks"]) == [
        "baseline", "1+x", "2+b", "3+y", "without-x", "without-b", "other",
    ]  # fmt: skip
    assert uses(draft, "2+b") == [{"use": "a", "x": True}, {"use": "b"}]
    assert draft.data["stacks"]["3+y"]["set"] == {"train.y": True}
    assert uses(draft, "without-x") == [{"use": "b"}]


@pytest.mark.parametrize(("count", "stacks"), [(1, 2), (2, 4), (3, 6)])
def test_leaving_the_last_item_out_is_the_rung_before_and_not_made_again(
    count: int, stacks: int
) -> None:
    assert len(spelt_out(*[f"p{n}" for n in range(count)])[0].data["stacks"]) == stacks


def test_a_plugin_that_comes_again_stays_at_its_first_place() -> None:
    draft, _ = spelt_out("kernels.a", "compile", "kernels.b")
    assert uses(draft, "1+a") == [{"use": "kernels", "a": True, "b": False}]
    assert uses(draft, "3+b") == [{"use": "kernels", "a": True, "b": True}, {"use": "compile"}]
    assert uses(draft, "without-a") == [
        {"use": "kernels", "a": False, "b": True},
        {"use": "compile"},
    ]


def test_an_item_that_a_later_one_implies_is_left_out_of_nothing() -> None:
    draft, ladder = spelt_out("compile", {"use": "compile", "mode": "fast"}, "other")
    assert list(draft.data["stacks"]) == [
        "baseline", "1+compile", "2+mode-fast", "3+other", "without-mode-fast",
    ]  # fmt: skip
    assert ladder.subsets["3+other"] == ((0, 1, 2), (1, 2))


def test_an_item_may_use_and_set_and_have_a_name() -> None:
    item = {"name": "half", "set": {"model.dtype": "float16"}, "use": ["a", {"use": "b", "k": 1}]}
    draft, _ = spelt_out(item)
    assert draft.data["stacks"]["1+half"] == {
        "set": {"model.dtype": "float16"},
        "use": [{"use": "a"}, {"use": "b", "k": 1}],
        "description": "",
    }


def test_the_ladder_stands_on_the_baseline_of_the_file() -> None:
    stack = {"use": ["x", {"use": "kernels", "c": True}], "set": {"train.z": 1}}
    draft, _ = spelt_out("kernels.a", baseline="mine", stacks={"other": {}, "mine": stack})
    assert list(draft.data["stacks"]) == ["mine", "1+a", "other"]
    assert uses(draft, "mine") == [{"use": "x"}, {"use": "kernels", "c": True, "a": False}]
    assert uses(draft, "1+a") == [{"use": "x"}, {"use": "kernels", "c": True, "a": True}]
    assert draft.data["stacks"]["1+a"]["set"] == {"train.z": 1}


def test_items_of_one_word_get_longer_labels() -> None:
    items = ("a.lora", "b.lora", {"set": {"train.seed": 1}}, {"set": {"data.seed": 1}})
    names = list(spelt_out(*items)[0].data["stacks"])
    assert names[1:5] == ["1+lora", "2+b-lora", "3+seed-1", "4+data-seed-1"]


def test_an_empty_ladder_is_none() -> None:
    draft = Draft("some.yaml", {"ladder": []})
    assert expand_ladder(draft) is None
    assert "stacks" not in draft.data


# Points.


def test_a_place_on_the_ladder_is_no_part_of_the_identity(tmp_path: Path) -> None:
    rung = points(tmp_path, "ladder: [train.gradient_checkpointing]\n")[1]
    assert rung.stack.ladder is not None
    assert rung.scenario.train.gradient_checkpointing
    plain = Stack(name="other", settings=rung.stack.settings)
    assert identity_of(rung.scenario, rung.stack, {}) == identity_of(rung.scenario, plain, {})


def test_a_sweep_repeats_the_ladder_at_each_of_its_points(tmp_path: Path) -> None:
    text = "ladder: [x, y]\nsweep: {train.seed: [1, 2]}\n"
    found = [(p.sweep["train.seed"], p.stack.name) for p in points(tmp_path, text)]
    assert found == [(n, s) for n in (1, 2) for s in ("baseline", "1+x", "2+y", "without-x")]


def test_an_option_that_is_swept_in_the_baseline_reaches_all_rungs(tmp_path: Path) -> None:
    text = "ladder: [y]\nstacks: {baseline: [x]}\nsweep: {stacks.baseline.x.bits: [4, 8]}\n"
    found = points(tmp_path, text)
    assert [p.stack.uses[0].options["bits"] for p in found] == [4, 4, 8, 8]
    assert [p.stack.ladder is not None for p in found] == [True] * 4


def test_a_rung_may_be_excluded_by_its_name(tmp_path: Path) -> None:
    text = "ladder: [x, y]\nexclude: [{when: {stack: 1+x}, because: slow}]\n"
    assert [p.excluded for p in points(tmp_path, text)] == [(), ("slow",), (), ()]


def test_a_ladder_is_replaced_as_a_whole_by_the_file_that_extends(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("ladder: [x, y]\nname: base\n")
    found = points(tmp_path, "extends: base.yaml\nladder: [z]\n")
    assert [p.stack.name for p in found] == ["baseline", "1+z"]


def test_the_stacks_of_a_ladder_stand_in_the_checked_file(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("ladder: [x]\nstacks: {a: [b]}\n")
    file = resolve(read_draft(path)).scenario
    assert (list(file.stacks), file.baseline) == (["baseline", "1+x", "a"], "baseline")
    assert file.ladder == ("x",)


# What is refused.


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("ladder: x\n", ":1:1", "`ladder` is a list of items, not text"),
        ("ladder:\n- x\n- 3\n", ":3:3", "item 2 is neither text nor has it `use` or `set`"),
        ("ladder: [{useless: x}]\n", ":1:10", "ladder item 1 is neither"),
        ("ladder: [{set: {}}]\n", ":1:10", "neither uses nor sets anything"),
        ("ladder: [{sett: {a: 1}, use: [x]}]\n", ":1:11", "unknown key 'sett'; did you mean 'set'"),
        ("ladder: [{use: x, name: a.b}]\n", ":1:10", "the name 'a.b'"),
        ("ladder:\n- x\n- x\n", ":3:3", "item 'x' adds nothing: '1+x' is the same stack"),
        ("stacks: {baseline: [x]}\nladder: [x]\n", ":2:10", "'baseline' is the same stack"),
        (
            "stacks: {baseline: [{use: x, a: true}]}\nladder: [x.a]\n",
            ":2:10",
            "the baseline switches it on already",
        ),
        (
            "train: {gradient_checkpointing: true}\nladder: [train.gradient_checkpointing]\n",
            ":2:10",
            "the scenario sets that already",
        ),
        ("ladder: [x]\nstacks: {1+x: [y]}\n", ":2:10", "a stack '1+x' of its own"),
        (
            "stacks: {1+x: [y]}\nbaseline: 1+x\nladder: [x]\n",
            ":3:10",
            "a stack '1+x' of its own, and the baseline has that name",
        ),
        (
            "stacks: {without-x: [w]}\nbaseline: without-x\nladder: [x, y]\n",
            ":3:10",
            "a stack 'without-x' of its own, and the baseline has that name",
        ),
        ("ladder: [x]\nbaseline: 1+x\n", ":2:1", "`stacks` has no '1+x'"),
        (
            "ladder:\n- x\n- train.gradient_checkpoint\n",
            ":3:3",
            "did you mean 'gradient_checkpointing'? (stack '2+gradient_checkpoint')",
        ),
        ("ladder: [measure.sync]\n", ":1:10", "a stack cannot set 'measure.sync'"),
        (
            "ladder: [x]\nsweep: {stacks.1+x.x.bits: [4]}\n",
            ":2:9",
            "what a ladder makes is changed in its items",
        ),
        ("ladder: [x]\nsweep: {ladder: [[y]]}\n", ":2:9", "unknown key 'ladder'"),
    ],
)
def test_a_wrong_item_is_refused_with_file_line_and_item(
    text: str, place: str, message: str, tmp_path: Path
) -> None:
    said = refusal(tmp_path, text)
    assert message in said
    assert f"some.yaml{place}: " in said or place == ":2:9"


def test_a_ladder_of_too_many_items_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    items = ", ".join(f"p{n}" for n in range(MAXIMUM_ITEMS + 1))
    assert f"at most {MAXIMUM_ITEMS} may be" in refusal(tmp_path, f"ladder: [{items}]\n")


def test_a_ladder_is_expanded_once_for_all_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(draft: Draft) -> Ladder | None:
        calls.append(draft)
        return expand_ladder(draft)

    monkeypatch.setattr("accel_bench_ladder.stacks.expand_ladder", counted)
    path = write_nulls(
        tmp_path,
        ladder="[train.gradient_checkpointing, {set: {data.seed: 1}}]",
        stacks="{}",
        sweep="{train.seed: [1, 2, 3]}",
    )
    plan = make_plan(read_draft(path), read_machine(), PlanRequest())
    assert len(plan.planned) == 4 * 3
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ladder: [{use: x, bits: 4}]\nstacks: {baseline: [{use: x}]}\n"
            "sweep: {stacks.baseline.x.bits: [8, 4]}\n",
            r"1:1: two stacks of the ladder are the same at stacks\.baseline\.x\.bits=4",
        ),
        (
            "ladder: [{set: {train.seed: 2}}]\nsweep: {train.seed: [1, 2]}\n",
            r"1:10: ladder item 'train\.seed' adds nothing: the scenario sets that already",
        ),
    ],
)
def test_an_item_that_adds_nothing_at_a_point_of_the_sweep_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=message):
        points(tmp_path, text)


def test_a_setting_that_is_added_reaches_every_point_of_a_ladder(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("ladder: [x]\nsweep: {train.seed: [1, 2]}\n")
    file = resolve(read_draft(path)).with_settings([("adapter.use", "lora", "added for x")])
    assert {point.scenario.adapter.use for point in file.points("cpu")} == {"lora"}
    assert file.where(("adapter", "use")) == "added for x"
    assert not resolve(read_draft(path)).is_set("adapter")
