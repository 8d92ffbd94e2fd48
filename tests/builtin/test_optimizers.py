"""The optimizers: torch's own, at the scenario's learning rate, over what is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from accel_bench import Run
from accel_bench.builtin.optimizers import SGD, Adafactor, Adam, AdamW, TorchOptimizer
from accel_bench.errors import InvalidRunError

ALL = (AdamW, Adam, SGD, Adafactor)
MakeRun = Callable[..., Run]


def plugin(kind: type[TorchOptimizer[Any]], **options: Any) -> TorchOptimizer[Any]:
    return kind(kind.Options.model_validate_json(json.dumps(options)))


def with_model(make_run: MakeRun, **train: Any) -> Run:
    run = make_run(train=train)
    torch.manual_seed(0)
    run.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    return run


@pytest.mark.parametrize("kind", ALL)
def test_a_step_changes_what_is_trained_and_nothing_else(
    make_run: MakeRun, kind: type[TorchOptimizer[Any]]
) -> None:
    run = with_model(make_run, learning_rate=0.1)
    run.model[0].requires_grad_(False)
    before = [p.detach().clone() for p in run.model.parameters()]
    optimizer = plugin(kind).build_optimizer(run)
    run.model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
    changed = [not torch.equal(p, b) for p, b in zip(run.model.parameters(), before, strict=True)]
    assert changed == [False, False, True, True]


@pytest.mark.parametrize("kind", ALL)
def test_the_learning_rate_is_that_of_the_scenario(
    make_run: MakeRun, kind: type[TorchOptimizer[Any]]
) -> None:
    optimizer = plugin(kind).build_optimizer(with_model(make_run, learning_rate=0.025))
    assert [group["lr"] for group in optimizer.param_groups] == [0.025]


@pytest.mark.parametrize("kind", ALL)
def test_a_model_without_anything_to_train_makes_the_run_invalid(
    make_run: MakeRun, kind: type[TorchOptimizer[Any]]
) -> None:
    run = with_model(make_run)
    run.model.requires_grad_(False)
    with pytest.raises(InvalidRunError, match="no parameter requires a gradient"):
        plugin(kind).build_optimizer(run)


@pytest.mark.parametrize("kind", ALL)
def test_the_defaults_of_the_options_are_those_of_torch(
    make_run: MakeRun, kind: type[TorchOptimizer[Any]]
) -> None:
    options = plugin(kind).options.model_dump()
    defaults = getattr(torch.optim, kind.optimizer_class)(torch.nn.Linear(1, 1).parameters())
    assert options == {key: defaults.defaults[key] for key in options}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (AdamW, {"betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1}),
        (Adam, {"weight_decay": 0.1, "eps": 1e-6}),
        (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (Adafactor, {"beta2_decay": -0.5, "eps": [None, 1e-4], "d": 2.0}),
    ],
)
def test_options_reach_the_optimizer(
    make_run: MakeRun, kind: type[TorchOptimizer[Any]], options: dict[str, Any]
) -> None:
    group = plugin(kind, **options).build_optimizer(with_model(make_run)).param_groups[0]
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    assert {key: group[key] for key in options} == given


def test_adamw_agrees_with_its_formula_after_one_step(make_run: MakeRun) -> None:
    run = with_model(make_run, learning_rate=0.1)
    optimizer = plugin(AdamW, weight_decay=0.5).build_optimizer(run)
    run.model(torch.ones(3, 4)).square().sum().backward()
    weight = run.model[1].weight
    # After one step both bias-corrected averages are the gradient itself: the update is its sign.
    expected = weight.detach() * (1 - 0.1 * 0.5) - 0.1 * weight.grad.sign()
    optimizer.step()
    assert torch.allclose(weight, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "fused", "foreach"),
    [({}, False, False), ({"fused": True}, True, False), ({"foreach": True}, False, True)],
)
def test_evidence_says_which_implementation_was_used(
    make_run: MakeRun, options: dict[str, Any], fused: bool, foreach: bool
) -> None:
    run, adamw = with_model(make_run), plugin(AdamW, **options)
    optimizer = adamw.build_optimizer(run)
    run.model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert adamw.report_evidence(run) == {
        "class": "AdamW",
        "fused": fused,
        "foreach": foreach,
        "tensors": 4,
        "parameters": 4 * 8 + 8 + 8 * 2 + 2,
        "state_dtypes": ["float32"],
    }


def test_there_is_no_evidence_where_another_plugin_built_the_optimizer(make_run: MakeRun) -> None:
    assert plugin(AdamW).report_evidence(make_run()) == {}


def test_fused_and_foreach_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        plugin(AdamW, fused=True, foreach=True)
