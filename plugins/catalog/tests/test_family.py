"""A family runs every one of its models, by its own task and with data that it learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import SOUND, install
from faults.program import null_scenario, write_scenario

from accel_bench.catalog.models import list_cards
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.plugins.registry import installed
from accel_bench.scenario.find import read_draft


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    """Plan a scenario."""

    def make(request: PlanRequest, **changes: Any) -> Plan:
        scenario = null_scenario({"baseline": [], "other": []}, **changes)
        path = write_scenario(tmp_path / "scenario.yaml", scenario)
        return make_plan(read_draft(path), read_machine().model_copy(update={"gpus": ()}), request)

    return make


@pytest.mark.box
def test_a_family_runs_all_its_cards_each_by_its_own_task(plan_of: Any) -> None:
    plan = plan_of(PlanRequest(family="text-encoder"), model={"id": "gpt2"})
    found = {(one.experiment.scenario.model.id, one.experiment.scenario.task.use)
             for one in plan.planned}  # fmt: skip
    cards = {name: card for name, card in list_cards().items() if card.family == "text-encoder"}
    assert found == {(name, card.task) for name, card in cards.items()}
    assert ("e5-small-v2", "embedding") in found


@pytest.mark.box
def test_models_of_a_family_get_data_that_their_task_learns_from(plan_of: Any) -> None:
    text = {"use": "text", "sequence_length": 32}
    plan = plan_of(PlanRequest(family="text-encoder"), model={}, data=text)
    used = {one.experiment.scenario.model.id: one.experiment.scenario.data for one in plan.planned}
    assert (used["bert-base-uncased"].use, used["bert-base-uncased"].sequence_length) == (
        "text",
        32,
    )
    assert used["e5-small-v2"].use == "synthetic-pairs"
    assert [one.experiment.tag for one in plan.planned if one.experiment.stack.name == "other"] == [
        *used
    ]
    plan = plan_of(PlanRequest(family="vision"), model={}, data="synthetic")
    sizes = {
        one.experiment.scenario.model.id: one.experiment.scenario.data.options["image_size"]
        for one in plan.planned
    }
    assert sizes["vit-base-patch16-224"] == 224
    assert sizes["tiny-vit-cpu"] == 32
    assert not any(one.skipped for one in plan.planned)


@pytest.mark.box
def test_data_of_another_task_keep_the_settings_of_the_file(plan_of: Any) -> None:
    written = {"use": "text", "sequence_length": 256, "held_out": 0.1, "packing": False}
    changes = ("data.seed", 7), ("train.micro_batch_size", 2)
    request = PlanRequest(family="multimodal", overrides=changes)
    plan = plan_of(request, model={}, data=written)
    used = {one.experiment.scenario.model.id: one.experiment.scenario.data for one in plan.planned}
    assert {(data.use, data.held_out, data.seed) for data in used.values()} == {
        ("captions", 0.1, 7)
    }
    lengths = {name: data.sequence_length for name, data in used.items()}
    assert lengths["tiny-smolvlm-cpu"] == 256
    assert lengths["clip-vit-base-patch32"] == 77  # It knows no more positions.
    assert (
        f"data: captions in the place of text (left out: packing) for {len(used)} of the models of "
        "--family multimodal, whose task does not learn from text"
    ) in plan.notices
    assert not any(one.skipped for one in plan.planned)


@pytest.mark.box
def test_a_length_that_is_worked_out_from_replaced_data_is_not_kept(plan_of: Any) -> None:
    written = {"use": "text", "sequence_length": "auto"}
    plan = plan_of(PlanRequest(family="text-to-text"), model={}, data=written)
    assert {one.experiment.scenario.data.sequence_length for one in plan.planned} == {64}


@pytest.mark.box
def test_tokens_of_a_plugin_that_core_does_not_know_are_replaced_too(
    plan_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "of-mine", {"my-tokens": "Sound"}, SOUND)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    installed.cache_clear()
    plan = plan_of(PlanRequest(family="text-to-text"), model={}, data={"use": "my-tokens"})
    installed.cache_clear()
    assert {one.experiment.scenario.data.use for one in plan.planned} == {"synthetic-pairs"}


@pytest.mark.box
def test_data_that_is_no_tokens_is_left_to_a_family_as_it_is(plan_of: Any) -> None:
    pairs = {"use": "docstrings", "limit_bytes": 10_000}
    plan = plan_of(PlanRequest(family="text-to-text"), model={}, data=pairs)
    assert {one.experiment.scenario.data.use for one in plan.planned} == {"docstrings"}


@pytest.mark.box
def test_a_family_under_a_task_runs_the_cards_of_that_task(plan_of: Any) -> None:
    plan = plan_of(PlanRequest(family="text-encoder"), task="masked-lm")
    assert {one.experiment.sweep["model.id"] for one in plan.planned} == {
        "bert-base-uncased",
        "distilbert-base-uncased",
    }


def test_an_unknown_family_is_answered_with_the_nearest(plan_of: Any) -> None:
    with pytest.raises(ScenarioError, match="did you mean 'text-encoder'"):
        plan_of(PlanRequest(family="text-encoders"))
