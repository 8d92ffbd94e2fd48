"""Tests of the stack plugins of activations: contract, evidence, and refused scenarios."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_bench_activations.activations import (
    ActivationCheckpointing,
    CheckpointingOptions,
)
from pydantic import ValidationError

from accel_bench import Run, Status
from accel_bench.testing import check_plugin, make_machine, run_plugin

pytestmark = pytest.mark.long

MakeRun = Callable[..., Run]
NAME = "activation-checkpointing"
MACHINE = make_machine()
LORA = {"adapter": {"use": "lora", "dropout": 0.1}}


def options(**given: Any) -> CheckpointingOptions:
    return CheckpointingOptions.model_validate_json(json.dumps(given))


def reasons(run: Run) -> list[str]:
    return list(ActivationCheckpointing(options(), NAME).check_scenario(run.experiment, MACHINE))


@pytest.mark.release
@pytest.mark.parametrize("archs", [[], ["GPT2LMHeadModel"]])
def test_checkpointing_keeps_the_contract(archs: list[str]) -> None:
    check_plugin(NAME, archs=archs, dtypes=[])


def test_selective_checkpointing_keeps_the_contract_under_adapters_that_drop() -> None:
    check_plugin(NAME, options={"policy": "selective"}, scenario=LORA, archs=[], dtypes=[])


def test_offload_keeps_what_of_the_contract_can_be_seen_without_a_gpu() -> None:
    report = check_plugin("activation-offload")
    assert [clause.name for clause in report.clauses if clause.outcome == "unproven"] == ["runs"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_offload_keeps_the_contract_on_a_gpu() -> None:
    check_plugin("activation-offload", options={"minimum_bytes": 1024}, device="cuda")


def test_a_run_is_not_degraded_for_the_checkpointing_that_its_stack_asked_for() -> None:
    layers = {"model": {"overrides": {"num_hidden_layers": 3}}}
    result = run_plugin(NAME, policy="every", scenario=layers)
    assert (result.status, result.reasons) == (Status.OK, ())
    effective = result.ranks[0].effective
    assert effective.gradient_checkpointing is True
    assert effective.checkpointed_blocks.model_dump() == {
        "checkpointed": 2,
        "blocks": 3,
        "policy": "every 2",
    }


def test_every_block_was_computed_twice_in_the_warm_up_and_nothing_is_counted_after_it() -> None:
    """One step of warm-up, then a window of five: what a block keeps is what one pass kept."""
    evidence = run_plugin(NAME, policy="selective").ranks[0].evidence[NAME]
    assert evidence["forwards"] == evidence["recomputations"] == evidence["blocks"] > 0
    assert evidence["kept"]["aten.mm"] == 7
    assert evidence["kept_bytes"] > 0


def test_what_core_checkpoints_already_is_refused(make_run: MakeRun) -> None:
    (reason,) = reasons(make_run(train={"gradient_checkpointing": True}))
    assert "train.gradient_checkpointing is true" in reason
    assert "{set: {train.gradient_checkpointing: false}" in reason
    assert reasons(make_run()) == []


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"every": 3}, "every is for policy every"),
        ({"policy": "every", "keep": ["matmuls"]}, "keep is for policy selective"),
        ({"policy": "selective", "keep": []}, "keep names nothing"),
        ({"policy": "selective", "keep": ["matmul"]}, "did you mean 'matmuls'?"),
        ({"policy": "every", "every": 1}, "greater than or equal to 2"),
    ],
)
def test_options_that_would_be_ignored_are_refused(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        options(**given)
