"""What a stack trains beside what its baseline trains: tensors, weights, FLOPs, dropout, rates."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_factory import make_experiment, make_rank, make_result

from accel_bench import Result
from accel_bench.analysis.checks.trained import trained_differences
from accel_bench.analysis.checks.training import compare_training
from accel_bench.effective import EffectiveConfiguration, GradientFlow, OptimizerProgress
from accel_bench.flops.workload import Matmul, Workload
from accel_bench.scenario.uses import Use

TENSORS = tuple(f"layers.{n}.weight" for n in range(4))


def run(
    tensors: tuple[str, ...] = TENSORS,
    weights: int = 400,
    *,
    trains: int = 4,
    rates: dict[str, int] | None = None,
    dropout: dict[str, int] | None = None,
    layers: int = 4,
    optimizer: dict[str, Any] | None = None,
    declared: tuple[str, ...] = (),
    **experiment: Any,
) -> Result:
    """A run of a model of four matrices of 10 x 10, of which `trains` train."""
    flow = GradientFlow(
        trained_tensors=len(tensors),
        tensors_with_gradient=len(tensors),
        gradient_norms=dict.fromkeys(tensors, 1.0),
    )
    effective = EffectiveConfiguration(
        trained_dtypes={"float32": weights},
        gradient_flow=flow,
        dropout=dropout or {},
        optimizer_progress=OptimizerProgress(
            steps=3, learning_rates=rates or {"0.0002": 4}, **(optimizer or {})
        ),
    )
    matmuls = [
        Matmul(name=f"m{n}", rows=10, columns=10, trains=n >= layers - trains)
        for n in range(layers)
    ]
    update = {"effective": effective, "workload": Workload(matmuls=tuple(matmuls))}
    rank = make_rank().model_copy(update=update)
    result = make_result(make_experiment(**experiment), ranks=(rank,))
    return result.model_copy(update={"other_optimizers": declared})


def test_a_run_that_trains_the_same_has_no_difference() -> None:
    assert trained_differences(run(), run()) == ()
    assert trained_differences(run(), make_result()) == ()
    assert trained_differences(make_result(), run()) == ()


def test_a_stack_that_freezes_says_how_much_it_trains() -> None:
    assert trained_differences(run(), run(TENSORS[2:], 200, trains=2)) == (
        "trains 2 of the baseline's 4 tensors, 50 % of its weights",
        "2e+03 FLOP a token, the baseline's 2.4e+03",
    )


def test_more_weights_than_the_baseline_s_are_counted() -> None:
    more = run((*TENSORS, "head.weight"), 500)
    assert trained_differences(run(), more) == ("trains 500 weights, the baseline 400",)


def test_rows_that_pad_the_vocabulary_are_no_other_training() -> None:
    assert trained_differences(run(), run(weights=403)) == ()
    assert trained_differences(run(), run(weights=410)) != ()
    assert trained_differences(run(), run(TENSORS[1:], weights=398)) != ()


def test_a_layer_that_is_left_out_shows_in_the_flops() -> None:
    assert trained_differences(run(), run(trains=3, layers=3)) == (
        "1.8e+03 FLOP a token, the baseline's 2.4e+03",
    )


@pytest.mark.parametrize(
    "names",
    [
        tuple(f"_orig_mod.{name}" for name in TENSORS),
        tuple(name.replace("weight", "_checkpoint_wrapped_module.weight") for name in TENSORS),
        ("experts.weight",),
    ],
    ids=["compiled", "checkpointed", "in one tensor"],
)
def test_other_names_of_the_same_weights_are_no_difference(names: tuple[str, ...]) -> None:
    assert trained_differences(run(), run(names)) == ()


@pytest.mark.parametrize(
    "scenario",
    [
        {"adapter": {"use": "lora", "options": {"r": 4}}},
        {"model": {"overrides": {"num_hidden_layers": 2}}},
    ],
    ids=["adapter", "model"],
)
def test_what_the_stacks_declare_is_explained(scenario: dict[str, Any]) -> None:
    assert trained_differences(run(), run(TENSORS[2:], 200, trains=2, scenario=scenario)) == ()


def test_another_dropout_and_another_rate_are_named() -> None:
    other = run(rates={"2e-05": 4})
    assert trained_differences(run(dropout={"0.1": 4}), other) == (
        "learning rate 2e-05 in force, the baseline's 0.0002",
        "dropout 0, the baseline's 0.1",
    )
    declared = run(rates={"2e-05": 4}, scenario={"train": {"learning_rate": 2e-5}})
    assert trained_differences(run(), declared) == ()


ADAMW: dict[str, Any] = {
    "hyperparameters": {"betas": {"0.9, 0.999": 4}, "maximize": {"false": 4}},
    "weight_decays": {"0.01": 4},
    "state_dtypes": {"float32": 800},
}


def adamw(betas: str = "0.9, 0.999", dtype: str = "float32", **other: Any) -> dict[str, Any]:
    """What is read of an optimizer that differs in this from the baseline's."""
    numbers = {**ADAMW["hyperparameters"], "betas": {betas: 4}, "beyond": {"2": 4}}
    return {**ADAMW, "hyperparameters": numbers, "state_dtypes": {dtype: 800}, **other}


@pytest.mark.parametrize(
    ("optimizer", "reasons"),
    [
        (adamw(), ()),
        ({}, ()),
        (adamw(dtype="float64"), ()),
        (adamw(weight_decays={"0.01": 9}), ()),
        (adamw("0.9, 0.95"), ("its optimizer has betas 0.9, 0.95, the baseline's 0.9, 0.999",)),
        (
            adamw(weight_decays={"0.01": 3, "0": 1}),
            (
                "its optimizer has weight_decay 0.01 (3 tensors) and 0 (1 tensors), the baseline's "
                "0.01",
            ),
        ),
        (
            adamw(dtype="uint8"),
            ("its optimizer keeps its state in uint8, the baseline's in float32",),
        ),
    ],
    ids=["equal", "unread", "wider", "joined tensors", "betas", "decay", "state"],
)
def test_numbers_of_the_optimizer_and_dtypes_of_its_state_are_compared(
    optimizer: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    assert trained_differences(run(optimizer=ADAMW), run(optimizer=optimizer)) == reasons


def test_a_state_in_the_dtype_of_its_weights_is_torch_s_own() -> None:
    stack = run(optimizer=adamw(dtype="bfloat16"))
    (rank,) = stack.ranks
    effective = rank.effective.model_copy(update={"trained_dtypes": {"bfloat16": 400}})
    stored = stack.model_copy(update={"ranks": (rank.model_copy(update={"effective": effective}),)})
    assert trained_differences(run(optimizer=ADAMW), stored) == ()


def test_numbers_that_the_scenarios_set_are_theirs() -> None:
    set_so = {"optimizer": {"use": "adamw", "options": {"betas": [0.9, 0.95]}}}
    stack = run(optimizer=adamw("0.9, 0.95"), scenario=set_so)
    assert trained_differences(run(optimizer=ADAMW), stack) == ()


def test_a_plugin_of_one_side_alone_may_declare_another_optimizer() -> None:
    uses = {"stack": "small", "uses": [Use(use="small-state")]}
    stack = run(optimizer=adamw(dtype="uint8"), declared=("small-state",), **uses)
    assert trained_differences(run(optimizer=ADAMW), stack) == ()
    found = compare_training({("a", 0): run(optimizer=ADAMW)}, {("a", 0): stack})
    note = "its optimizer keeps its state in uint8, the baseline's in float32"
    assert found.optimizer_by_design == f"{note}, as small-state declares"
    both = run(optimizer=ADAMW, declared=("small-state",), **uses)
    assert trained_differences(both, stack) == (note,)
