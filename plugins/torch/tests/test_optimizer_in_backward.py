"""Optimizers that step in the backward pass: the same training, without all gradients at once."""

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
from accel_bench_torch.optimizers_impl import OptimizerInBackward
from pydantic import ValidationError

from accel_bench import Result, Run
from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.errors import InvalidRunError
from accel_bench.testing import close_run, evidence_of, make_machine, run_plugin
from accel_bench.worker.stopwatch import WindowMonitor
from accel_bench.worker.verify.gradient_flow import FirstStepProbe

MakeRun = Callable[..., Run]
MACHINE = make_machine()
KINDS: list[tuple[type[TorchOptimizer[Any]], dict[str, Any]]] = [
    (AdamW, {"betas": [0.9, 0.95], "weight_decay": 0.1}),
    (AdamW, {"fused": True}),
    (Adam, {}),
    (SGD, {"momentum": 0.9}),
    (Adafactor, {}),
]


def plugin(kind: type[TorchOptimizer[Any]], **options: Any) -> TorchOptimizer[Any]:
    return kind(kind.Options.model_validate_json(json.dumps(options)), "optimizer")


def with_model(make_run: MakeRun, model: torch.nn.Module | None = None, **scenario: Any) -> Run:
    run = make_run(**{"train": {"learning_rate": 0.01}, **scenario})
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    run.model = run.unwrapped_model = model or torch.nn.Sequential(*layers)
    return run


def steps(run: Run, optimizer: Any, count: int = 5) -> list[float]:
    """Losses of a few steps, taken as engines take them."""
    losses = []
    for _ in range(count):
        loss = run.model(torch.ones(3, 4)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_losses_and_weights_are_those_of_the_ordinary_optimizer(
    make_run: MakeRun, kind: type[TorchOptimizer[Any]], options: dict[str, Any]
) -> None:
    ordinary, early = with_model(make_run), with_model(make_run)
    one = plugin(kind, **options).build_optimizer(ordinary)
    other = plugin(kind, **options, optimizer_in_backward=True).build_optimizer(early)
    assert steps(ordinary, one) == steps(early, other)
    for left, right in zip(ordinary.model.parameters(), early.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_gradient_is_gone_when_the_next_one_comes(make_run: MakeRun) -> None:
    run, alive = with_model(make_run), []
    parameters = list(run.model.parameters())

    def count(_: torch.Tensor) -> None:
        alive.append(sum(parameter.grad is not None for parameter in parameters))

    for parameter in parameters:  # Called before the optimizer's own hook.
        parameter.register_post_accumulate_grad_hook(count)
    plugin(AdamW, optimizer_in_backward=True).build_optimizer(run)
    run.model(torch.ones(3, 4)).sum().backward()
    assert alive == [1, 1, 1, 1]
    assert all(parameter.grad is None for parameter in parameters)


def test_evidence_says_how_much_of_the_gradients_was_alive_at_once(make_run: MakeRun) -> None:
    run, adamw = with_model(make_run), plugin(AdamW, optimizer_in_backward=True, fused=True)
    steps(run, adamw.build_optimizer(run))
    evidence = evidence_of(run)
    assert (evidence["class"], evidence["optimizer_in_backward"], evidence["fused"]) == (
        "AdamW",
        True,
        True,
    )
    assert evidence["gradient_bytes"] == 4 * (32 + 8 + 16 + 2)
    assert evidence["most_gradient_bytes"] == 4 * 32
    assert evidence["state_dtypes"] == ["float32"]


def test_a_weight_that_two_modules_share_is_updated_once_with_both_gradients(
    make_run: MakeRun,
) -> None:
    def tied() -> torch.nn.Module:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        second.weight = first.weight
        return torch.nn.Sequential(first, second)

    ordinary, early = with_model(make_run, tied()), with_model(make_run, tied())
    one = plugin(SGD).build_optimizer(ordinary)
    other = plugin(SGD, optimizer_in_backward=True).build_optimizer(early)
    assert steps(ordinary, one) == steps(early, other)


def test_the_first_step_is_looked_at_as_that_of_any_optimizer(make_run: MakeRun) -> None:
    found = []
    for optimizer_in_backward in (False, True):
        run = with_model(make_run)
        run.optimizer = plugin(SGD, optimizer_in_backward=optimizer_in_backward).build_optimizer(
            run
        )
        probe = FirstStepProbe(run)
        steps(run, run.optimizer, count=2)
        probe.check()
        found.append(probe.flow)
    assert found[0] == found[1]
    assert all(norm > 0 for norm in found[1].gradient_norms.values())


def test_a_cut_gradient_is_found(make_run: MakeRun) -> None:
    run = with_model(make_run)
    run.model[1].register_forward_hook(lambda module, inputs, output: output.detach())
    run.optimizer = plugin(SGD, optimizer_in_backward=True).build_optimizer(run)
    probe = FirstStepProbe(run)
    with pytest.raises(InvalidRunError, match=r"the gradient is cut: 1 trained modules .*: 0"):
        steps(run, run.optimizer)
    probe.remove()


def test_weights_that_do_not_move_are_found(make_run: MakeRun) -> None:
    run = with_model(make_run, train={"learning_rate": 0})
    run.optimizer = plugin(SGD, optimizer_in_backward=True).build_optimizer(run)
    probe = FirstStepProbe(run)
    steps(run, run.optimizer)
    with pytest.raises(InvalidRunError, match="no optimizer took a step with a learning rate"):
        probe.check()
    probe.remove()


def test_closing_takes_the_hooks_off_the_parameters(make_run: MakeRun) -> None:
    run, sgd = with_model(make_run), plugin(SGD, optimizer_in_backward=True)
    assert isinstance(sgd.build_optimizer(run), OptimizerInBackward)
    close_run(run)
    run.model(torch.ones(3, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in run.model.parameters())


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ({"train": {"max_grad_norm": 1.0}}, "before their norm is known"),
        ({"train": {"gradient_accumulation": 2}}, "in every backward pass"),
        ({"train": {"precision": "fp16-autocast"}}, "gradient scaler"),
        ({"resources": {"device": "cpu", "devices": 2}}, "added up over ranks"),
    ],
)
def test_what_needs_all_gradients_at_once_is_refused(
    make_run: MakeRun, scenario: dict[str, Any], reason: str
) -> None:
    experiment = make_run(**scenario).experiment
    (found,) = plugin(AdamW, optimizer_in_backward=True).check_scenario(experiment, MACHINE)
    assert reason in found
    assert list(plugin(AdamW).check_scenario(experiment, MACHINE)) == []


def test_lists_of_tensors_are_refused() -> None:
    with pytest.raises(ValidationError, match="foreach updates many tensors at once"):
        plugin(AdamW, optimizer_in_backward=True, foreach=True)


def losses(result: Result) -> list[float | None]:
    assert result.status.completed, result.reasons
    window = result.ranks[0].window
    assert window is not None
    return [step.loss for step in (*window.warmup, *window.discarded, *window.samples)]


@pytest.mark.parametrize("engine", ["torch", pytest.param("hf-trainer", marks=pytest.mark.box)])
def test_a_run_in_either_engine_has_the_losses_of_the_ordinary_optimizer(engine: str) -> None:
    scenario = {
        "engine": engine,
        "train": {"gradient_checkpointing": True},
        "model": {"overrides": {"num_hidden_layers": 1}},
    }
    ordinary, early = (
        run_plugin(
            "adamw", scenario=scenario, fused=True, optimizer_in_backward=optimizer_in_backward
        )
        for optimizer_in_backward in (False, True)
    )
    # A window that was disturbed is measured again: on a busy machine one may have more steps.
    assert losses(early)[:6] == losses(ordinary)[:6]
    shown = [run.ranks[0].evidence["adamw"] for run in (ordinary, early)]
    assert [one["state_dtypes"] for one in shown] == [["float32"]] * 2


@pytest.mark.box
def test_a_window_that_is_measured_again_shifts_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs differ in their number of steps; losses are compared by the number of the step."""
    scenario = {"engine": "hf-trainer", "model": {"overrides": {"num_hidden_layers": 1}}}
    disturbed = [["other work"], []]
    runs = []
    for early, found in ((False, []), (True, disturbed)):
        monkeypatch.setattr(
            WindowMonitor, "instabilities", lambda *_, found=found: found.pop(0) if found else []
        )
        runs.append(run_plugin("adamw", scenario=scenario, optimizer_in_backward=early))
    ordinary, again = runs
    assert len(losses(again)) > len(losses(ordinary))
    compared = compare_losses({("", 0): ordinary}, {("", 0): again})
    assert (compared.loss_verdict, compared.loss_difference) == ("bitwise equal", 0.0)
