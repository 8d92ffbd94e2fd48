"""Sizes come in through a door: found by their key, and named where nothing works them out."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from cli.program import write_nulls

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning import sizes
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.planning.sizes import GROUP, plan_with_sizes
from accel_bench.plugins.doors import DoorEntry, find_entries
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.sweep import LENGTH, STAND_INS

STRANGER = """\
def length(sizing):
    return 24, f"{sizing.stacks()[0].experiment.stack.name} asks for it"


def none(sizing):
    return 0, "nothing fits"


def number(sizing):
    return 24


def stop(sizing):
    raise SystemExit("no more")
"""


def plan_with(
    value: str | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...] = (LENGTH,),
    **changes: str,
) -> list[int]:
    """Sequence lengths of a plan in which an entry point of that value works the length out."""
    (folder / "a_stranger_s_sizes.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "a_stranger_s_sizes", raising=False)
    found = {
        name: DoorEntry("size", name, EntryPoint(name, value, GROUP)) for name in names if value
    }
    monkeypatch.setattr(sizes, "find_entries", lambda group, kind: found)
    draft = read_draft(write_nulls(folder, data="{use: null, sequence_length: auto}", **changes))
    plan = plan_with_sizes(draft, read_machine(), PlanRequest())
    return [one.experiment.scenario.data.sequence_length for one in plan.planned]


@pytest.mark.box
def test_ours_enter_by_the_door() -> None:
    assert {*find_entries(GROUP, "size")} == {*STAND_INS}


def test_a_size_is_what_the_entry_of_its_key_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan_with("a_stranger_s_sizes:length", tmp_path, monkeypatch) == [24, 24]


def test_a_size_is_worked_out_from_a_plan_of_its_point_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Plan] = []

    def make(*arguments: Any) -> Plan:
        made.append(make_plan(*arguments))
        return made[-1]

    monkeypatch.setattr(sizes, "make_plan", make)
    sweep = "{train.seed: [1, 2]}"
    assert plan_with("a_stranger_s_sizes:length", tmp_path, monkeypatch, sweep=sweep) == [24] * 4
    assert [len(plan.planned) for plan in made] == [4, 2, 2, 4]


def test_a_size_that_nothing_works_out_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ScenarioError, match="nothing that is installed works it out"):
        plan_with(None, tmp_path, monkeypatch)


def test_rivals_for_a_size_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = (f"one:{LENGTH}", f"other:{LENGTH}")
    with pytest.raises(ScenarioError, match=f"auto: {', '.join(rivals)} would work it out"):
        plan_with("a_stranger_s_sizes:length", tmp_path, monkeypatch, rivals)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("none", r"it returned \(0, 'nothing fits'\), and not a size"),
        ("number", "it returned 24, and not a size"),
        ("stop", "SystemExit: no more"),
    ],
)
def test_a_size_that_fails_is_named_with_the_reason(
    function: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match=f"size '{LENGTH}' of .* is broken: {reason}"):
        plan_with(f"a_stranger_s_sizes:{function}", tmp_path, monkeypatch)


def test_a_broken_size_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match=r"size 'data.sequence_length' of .* is broken: Module"):
        plan_with("no_such_library:size", tmp_path, monkeypatch)
