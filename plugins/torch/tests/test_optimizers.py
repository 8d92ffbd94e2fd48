"""The optimizers: torch's own, at the scenario's learning rate, over what is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_bench_torch.optimizers import (
    SGD,
    Adafactor,
    Adam,
    AdamW,
    TorchOptimizer,
)
from imported_modules import imported
from pydantic import ValidationError

from accel_bench import Run
from accel_bench.errors import InvalidRunError
from accel_bench.testing import evidence_of

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
    assert options.pop("optimizer_in_backward") is False
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
    ("options", "fused", "foreach", "kernel"),
    [
        ({}, False, False, None),
        ({"fused": True}, True, False, "_fused_adamw_"),
        ({"foreach": True}, False, True, "_foreach_addcdiv_"),
    ],
)
def test_evidence_says_which_implementation_was_used(
    make_run: MakeRun, options: dict[str, Any], fused: bool, foreach: bool, kernel: str | None
) -> None:
    run, adamw = with_model(make_run), plugin(AdamW, **options)
    optimizer = adamw.build_optimizer(run)
    run.model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    evidence = evidence_of(run)
    kernels = evidence.pop("kernels")
    assert kernel in kernels if kernel else kernels == []
    assert evidence == {
        "class": "AdamW",
        "fused": fused,
        "foreach": foreach,
        "tensors": 4,
        "parameters": 4 * 8 + 8 + 8 * 2 + 2,
        "state_dtypes": ["float32"],
    }


def test_what_is_said_to_be_fused_is_what_the_first_step_called(make_run: MakeRun) -> None:
    """Torch itself could fall back; the flag of the group would still say `fused`."""
    run, adamw = with_model(make_run), plugin(AdamW, fused=True)
    optimizer = adamw.build_optimizer(run)
    optimizer.param_groups[0]["fused"] = False
    run.model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["fused"] = True
    evidence = evidence_of(run)
    assert (evidence["fused"], evidence["kernels"]) == (False, [])


def test_only_the_first_step_is_watched(make_run: MakeRun) -> None:
    run, sgd = with_model(make_run), plugin(SGD)
    optimizer = sgd.build_optimizer(run)
    run.model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_the_optimizer_of_a_published_recipe_can_be_said_in_a_file(make_run: MakeRun) -> None:
    adamw = {"use": "adamw", "fused": True, "betas": [0.9, 0.95], "weight_decay": 0.1}
    run = make_run(model={"dtype": "bfloat16"}, optimizer=adamw, train={"learning_rate": 5e-4})
    run.model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    built = plugin(AdamW, **run.scenario.optimizer.options).build_optimizer(run)
    group = built.param_groups[0]
    assert {key: group[key] for key in ("lr", "betas", "weight_decay", "fused")} == {
        "lr": 5e-4,
        "betas": (0.9, 0.95),
        "weight_decay": 0.1,
        "fused": True,
    }
    run.model(torch.ones(3, 4, dtype=torch.bfloat16)).sum().backward()
    built.step()
    assert evidence_of(run)["state_dtypes"] == ["bfloat16"]


def test_fused_and_foreach_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        plugin(AdamW, fused=True, foreach=True)


def test_the_plugins_modules_import_no_torch() -> None:
    program = "from accel_bench_torch import cuda, ddp, engine, mps, optimizers, rocm"
    assert not imported(program, {"torch", "numpy"})
