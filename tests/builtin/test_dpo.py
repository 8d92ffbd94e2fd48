"""DPO: the loss of a few steps, with every option, and what cannot be run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_training import SCENARIO, our_losses, pairs_of, trl_losses

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.result import Result
from accel_bench.scenario.draft import read_draft
from accel_bench.testing import run_scenario

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "beta": {"beta": 0.5},
    "nll": {"nll_scale": 0.3},
    "normalized": {"length_normalization": True, "beta": 2.0},
    "both": {"length_normalization": True, "nll_scale": 0.2},
}
"""Options of the task."""


def write(folder: Path, **changes: Any) -> Path:
    """A scenario of pairs, with sections changed."""
    path = folder / "dpo.yaml"
    path.write_text(json.dumps({**SCENARIO, **changes}))
    return path


def only(results: dict[str, Result]) -> Result:
    """The only result, which has to be complete."""
    (result,) = results.values()
    assert result.status.completed, result.reasons
    return result


def planned(path: Path) -> Plan:
    """The plan of a scenario."""
    return make_plan(read_draft(path), read_machine(), PlanRequest())


def test_the_first_loss_is_that_of_a_policy_which_is_its_reference(tmp_path: Path) -> None:
    losses = our_losses(tmp_path, {"beta": 0.3})
    assert losses[0] == pytest.approx(math.log(2), rel=1e-6)
    assert losses[-1] != pytest.approx(losses[0], rel=1e-4)


def test_an_adapter_s_base_is_the_reference_and_stays_as_it_is(tmp_path: Path) -> None:
    adapter = {"use": "lora", "r": 4, "target_modules": "all-linear"}
    result = only(run_scenario(write(tmp_path, adapter=adapter)))
    (rank,) = result.ranks
    assert rank.window is not None
    first = rank.window.warmup[0]
    assert first.loss == pytest.approx(math.log(2), rel=1e-6)
    shown = rank.evidence["dpo"]
    assert isinstance(shown, dict)
    assert shown["reference"] == "the base, without the adapter"
    # A pair is a sample, and tokens are those of both sequences.
    assert first.sequences == 4
    assert first.processed_tokens > 4 * 32
    assert 0 < first.supervised_tokens < first.real_tokens


def test_micro_batches_add_up_to_the_loss_of_the_step(tmp_path: Path) -> None:
    train = {**SCENARIO["train"], "micro_batch_size": 2, "gradient_accumulation": 2}
    whole = our_losses(tmp_path, OPTIONS["both"])
    assert our_losses(tmp_path, OPTIONS["both"], train=train) == pytest.approx(whole, rel=1e-5)


def test_the_loss_is_that_of_the_paper_on_pairs_of_ours(tmp_path: Path) -> None:
    """Computed here from the logits of the model, without any of the task's code."""
    run, pairs = pairs_of(tmp_path)
    from accel_bench.modeling.loading import load_base_model

    torch.manual_seed(1)
    policy = load_base_model(run)
    reference = load_base_model(run)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))

    def log_probability(model: Any, ids: list[int], prompt: int) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].double()
        found = torch.log_softmax(logits[:-1], dim=-1)
        following = torch.tensor(ids[1:])
        return float(found[torch.arange(len(following)), following][prompt - 1 :].sum())

    from accel_bench.builtin.data.dataset_impl import batch_of, plan_of
    from accel_bench.builtin.tasks.dpo import DPOOptions
    from accel_bench.builtin.tasks.dpo_impl import PreferenceLoss

    expected = 0.0
    for pair in pairs[:3]:
        ratios = [
            log_probability(policy, pair["prompt_ids"] + pair[kind], len(pair["prompt_ids"]))
            - log_probability(reference, pair["prompt_ids"] + pair[kind], len(pair["prompt_ids"]))
            for kind in ("chosen_ids", "rejected_ids")
        ]
        expected += math.log1p(math.exp(-0.1 * (ratios[0] - ratios[1]))) / 3
    run.unwrapped_model = reference
    loss = PreferenceLoss(run, DPOOptions())
    numbers = torch.tensor([pair["number"] for pair in pairs[:3]]).numpy()
    rows = [*(2 * numbers), *(2 * numbers + 1)]
    batch = batch_of(run.dataset.sequences, rows, plan_of(run, "longest"), 3)
    assert float(loss(policy, batch.inputs, 3).detach()) == pytest.approx(expected, rel=1e-5)


def test_another_model_can_be_the_reference(tmp_path: Path) -> None:
    from accel_bench.modeling.loading import load_base_model

    run, _ = pairs_of(tmp_path)
    model = load_base_model(run)
    model.save_pretrained(tmp_path / "policy")
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "reference")
    policy = {"id": str(tmp_path / "policy"), "weights": "pretrained"}
    of_itself = our_losses(tmp_path, {"reference_model": str(tmp_path / "policy")}, model=policy)
    of_other = our_losses(tmp_path, {"reference_model": str(tmp_path / "reference")}, model=policy)
    assert of_itself == pytest.approx(our_losses(tmp_path, {}, model=policy), rel=1e-6)
    assert of_other[0] != pytest.approx(math.log(2), rel=1e-3)


# What cannot be run.


def test_a_reference_over_several_devices_is_skipped_with_its_reason(tmp_path: Path) -> None:
    task = {"use": "dpo", "reference_tensor_parallel_size": 2}
    plan = planned(write(tmp_path, task=task))
    assert "the reference is held whole on each device" in plan.nothing


def test_data_without_pairs_is_told_which_has_them(tmp_path: Path) -> None:
    result = only_failed(
        run_scenario(write(tmp_path, data={"use": "synthetic", "vocab_size": 300}))
    )
    assert "task dpo compares pairs of answers" in result.reasons[0]


def only_failed(results: dict[str, Result]) -> Result:
    """The only result, which has to have failed."""
    (result,) = results.values()
    assert not result.status.completed
    return result


def test_the_sweep_of_a_preference_recipe_is_planned_in_our_keys(tmp_path: Path) -> None:
    """Beta, scale of the likelihood, normalization, and a reference that is held whole."""
    sweep = {
        "task.beta": [0.1, 0.2, 0.5],
        "task.nll_scale": [0.0, 0.1],
        "task.length_normalization": [False, True],
        "task.reference_tensor_parallel_size": [1],
        "data.sequence_length": [32, 64],
    }
    data = {key: value for key, value in SCENARIO["data"].items() if key != "sequence_length"}
    plan = planned(write(tmp_path, data=data, task={"use": "dpo"}, sweep=sweep))
    assert len(plan.runnable) == 24
    assert len({one.experiment.id for one in plan.planned}) == 24


def test_pairs_are_refused_by_other_tasks(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError):
        raise ScenarioError(planned(write(tmp_path, task="causal-lm")).nothing)


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # of TRL, which sets arguments that transformers renames
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_are_those_of_trl_on_the_same_pairs(name: str, tmp_path: Path) -> None:
    theirs = trl_losses(tmp_path, OPTIONS[name])
    assert our_losses(tmp_path, OPTIONS[name]) == pytest.approx(theirs, rel=1e-5)
