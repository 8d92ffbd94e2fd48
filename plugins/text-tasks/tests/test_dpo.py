"""DPO: the loss of a few steps, with every option, and refused scenarios."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_bench_text_tasks.data.preferences import Preferences, PreferencesOptions
from accel_bench_text_tasks.tasks.dpo import DPO, DPOOptions
from accel_bench_text_tasks.tasks.dpo_impl import PreferenceLoss, turn_dropout_off
from torch import nn

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.modeling.loading import load_base_model
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.result import Result
from accel_bench.scenario.find import read_draft
from accel_bench.testing import run_scenario
from accel_bench.worker.learning import Evaluator

from .preference_training import SCENARIO, our_losses, pairs_of, trl_losses

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "beta": {"beta": 0.5},
    "nll": {"nll_scale": 0.3},
    "normalized": {"length_normalization": True, "beta": 2.0},
    "both": {"length_normalization": True, "nll_scale": 0.2},
}
"""Options of the task."""

LORA: dict[str, Any] = {"r": 4, "target_modules": "all-linear"}
"""Options of an adapter."""


def write(folder: Path, **changes: Any) -> Path:
    """Write a scenario of pairs, with sections changed."""
    path = folder / "dpo.yaml"
    path.write_text(json.dumps({**SCENARIO, **changes}))
    return path


def only(results: dict[str, Result]) -> Result:
    """The only result, which must be complete."""
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
    adapter = {"use": "lora", **LORA}
    result = only(run_scenario(write(tmp_path, adapter=adapter)))
    (rank,) = result.ranks
    assert rank.window is not None
    first = rank.window.warmup[0]
    assert first.loss == pytest.approx(math.log(2), rel=1e-6)
    shown = rank.evidence["dpo"]
    assert isinstance(shown, dict)
    assert shown["reference"] == "the base, without the adapter, as the stack accelerates it"
    assert shown["reference_layers"] == {"Linear": 8}
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

    from accel_bench.modeling.data.token_batches import batch_of, plan_of

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


def test_neither_policy_nor_reference_drops_anything_out(tmp_path: Path) -> None:
    overrides = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 400}
    dropped = {key: 0.3 for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    model = {"id": "gpt2", "overrides": overrides | dropped}
    train = {**SCENARIO["train"], "learning_rate": 1e-9}
    adapter = {"use": "lora", "r": 2, "target_modules": "all-linear"}
    losses = our_losses(tmp_path, {}, model=model, train=train, adapter=adapter)
    assert losses == pytest.approx([math.log(2)] * len(losses), rel=1e-6)


def test_dropout_that_is_a_number_is_turned_off_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model[0].attention_dropout = 0.2
    model.config = SimpleNamespace(resid_pdrop=0.1, hidden_size=2, rate=0.3)
    turn_dropout_off(model)
    assert (model[1].p, model[0].attention_dropout) == (0.0, 0.0)
    assert vars(model.config) == {"resid_pdrop": 0.0, "hidden_size": 2, "rate": 0.3}


def test_the_copied_reference_is_what_was_loaded_before_any_acceleration(tmp_path: Path) -> None:
    run, _ = pairs_of(tmp_path)
    task = DPO(DPOOptions())
    task.prepare_process(run)
    run.model = load_base_model(run)
    task.adjust_model(run.model)
    loaded = run.model.lm_head.weight.detach().clone()
    with torch.no_grad():  # As a lossy acceleration would.
        run.model.lm_head.weight.mul_(1.1)
    run.unwrapped_model = run.model
    loss = task.build_loss(run)
    assert isinstance(loss, PreferenceLoss)
    assert torch.equal(loss._reference.lm_head.weight, loaded)
    assert loss.evidence()["reference"] == "a copy of the policy as it was loaded"


def test_other_weights_of_the_reference_are_another_experiment(tmp_path: Path) -> None:
    run, _ = pairs_of(tmp_path)
    model, folder = load_base_model(run), tmp_path / "reference"
    task = {"use": "dpo", "reference_model": str(folder)}
    policy = {**SCENARIO["model"], "id": str(tmp_path / "policy"), "weights": "pretrained"}
    model.save_pretrained(tmp_path / "policy")
    found = []
    for scale in (1.0, 2.0):
        with torch.no_grad():
            model.lm_head.weight.mul_(scale)
        model.save_pretrained(folder)
        path = write(tmp_path, task=task, model={**policy, "overrides": {}})
        (one,) = planned(path).planned
        found.append(one.experiment.id)
    assert len({*found}) == 2


def test_a_reference_that_is_nowhere_is_told_by_the_plan(tmp_path: Path) -> None:
    task = {"use": "dpo", "reference_model": "./nowhere"}
    with pytest.raises(ScenarioError, match=r"task\.reference_model: .*nowhere"):
        planned(write(tmp_path, task=task))


def test_a_reference_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, task={"use": "dpo", "reference_model": "gpt2"})
    result = only_failed(run_scenario(path))
    assert "the model 'gpt2' has a vocabulary of 50257 tokens" in result.reasons[0]


# Evaluation.


def test_held_out_pairs_have_a_validation_loss_of_their_own(tmp_path: Path) -> None:
    data = {**SCENARIO["data"], "held_out": 5}
    evaluate = {"steps": 2, "every": 1}
    task = {"use": "dpo", **OPTIONS["both"], "nll_scale": 0.0}
    (rank,) = only(run_scenario(write(tmp_path, data=data, evaluate=evaluate, task=task))).ranks
    assert rank.learning is not None
    found = rank.learning.evaluations
    assert [one.sequences for one in found] == [5] * 4
    assert found[0].loss == pytest.approx(math.log(2), rel=1e-6)
    assert found[-1].loss is not None and found[-1].loss != pytest.approx(math.log(2), rel=1e-4)
    assert "predict" in {stage.name for stage in rank.stages}


@pytest.mark.parametrize("name", ["plain", "both"])
def test_a_rank_without_a_pair_adds_nothing_to_the_validation_loss(
    name: str, tmp_path: Path
) -> None:
    """The pair that it computes all the same has no labels: -log sigmoid(0), or 0 / 0."""
    losses = []
    for rank in range(2):
        run, _ = pairs_of(tmp_path, data={"held_out": 1}, resources={"devices": 2})
        run.rank, run.world_size = rank, 2
        run.task = DPO(DPOOptions.model_validate(OPTIONS[name]))
        run.model = run.unwrapped_model = load_base_model(run)
        run.loss = run.task.build_loss(run)
        batches = Preferences(PreferencesOptions()).build_evaluation_batches(run)
        losses.append(Evaluator(run, batches, lambda: None).evaluate(0).loss)
    whole, nothing = losses
    assert nothing == 0
    assert whole is not None and whole >= math.log(2) * 0.999


# What cannot be run.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "reference_tensor_parallel_size 2 does not divide the 1 devices"),
        ({"adapter": "lora"}, "the reference is the base under the adapter"),
        (
            {"model": {"id": "gpt2"}, "resources": {"device": "cpu", "devices": 2}},
            "transformers has no tensor-parallel plan for gpt2 models",
        ),
    ],
)
def test_a_reference_that_cannot_be_divided_is_skipped_with_its_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Divided ones are trained with real ranks in `plugins/distributed`."""
    task = {"use": "dpo", "reference_tensor_parallel_size": 2}
    path = write(tmp_path, **{"task": task, **changes})
    plan = make_plan(read_draft(path), read_machine(), PlanRequest(oversubscribe=True))
    assert reason in plan.nothing


def test_data_without_pairs_is_told_which_has_them(tmp_path: Path) -> None:
    result = only_failed(
        run_scenario(write(tmp_path, data={"use": "synthetic", "vocab_size": 300}))
    )
    assert "task dpo compares pairs of answers" in result.reasons[0]


def only_failed(results: dict[str, Result]) -> Result:
    """The only result, which must be failed."""
    (result,) = results.values()
    assert not result.status.completed
    return result


def test_pairs_are_refused_by_other_tasks(tmp_path: Path) -> None:
    plan = planned(write(tmp_path, task="causal-lm"))
    assert not plan.runnable
    assert "does not work with task causal-lm; it works with dpo" in plan.nothing


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # of TRL, which sets arguments that transformers renames
@pytest.mark.parametrize("adapter", [None, LORA], ids=["full", "LoRA"])
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_are_those_of_trl_on_the_same_pairs(
    name: str, adapter: dict[str, Any] | None, tmp_path: Path
) -> None:
    theirs = trl_losses(tmp_path, OPTIONS[name], adapter)
    changes = {"adapter": {"use": "lora", **adapter}} if adapter else {}
    ours = our_losses(tmp_path, OPTIONS[name], **changes)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[-1] != pytest.approx(ours[0], rel=1e-4)
