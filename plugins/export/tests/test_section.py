"""The winner's counterparts: under its table, in the document, and by `plugins show`."""

from __future__ import annotations

import json

import pytest
from analysis_factory import STEADY, make_experiment, make_rounds, make_summary, scaled
from cli.program import call

from accel_bench.analysis.schema import Summary
from accel_bench.report.formats import render
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.uses import Use

pytestmark = pytest.mark.box


def with_stack(name: str, *uses: str, **settings: object) -> Experiment:
    experiment = make_experiment(name)
    found = tuple(Use(use=one) for one in uses)
    stack = experiment.stack.model_copy(update={"uses": found, "settings": settings})
    return experiment.model_copy(update={"stack": stack})


def compared(*others: tuple[Experiment, float]) -> Summary:
    """A baseline, and stacks that take so many times its time."""
    base = make_experiment("baseline")
    results = make_rounds(base, STEADY)
    for experiment, factor in others:
        results += make_rounds(experiment, scaled(factor))
    return make_summary([base, *(one for one, _ in others)], results, baseline="baseline")


COMPILED = with_stack("torch-compile", "torch-compile")
PADDED = with_stack("padding-free", "padding-free")


def test_the_winner_alone_is_said_in_the_words_of_other_programs() -> None:
    summary = compared((COMPILED, 0.9), (PADDED, 0.7))
    (row,) = json.loads(render([summary], "json"))["sections"]["equivalents"]
    assert row["stack"] == "padding-free"
    assert row["programs"]["trl"] == {
        "padding_free": True,
        "max_length": None,
        "pad_to_multiple_of": None,
    }
    text = " ".join(render([summary], "table").split())
    assert "In your script" in text
    assert "trl padding_free: true" in text
    assert "accel-bench export padding-free --to trl" in text


def test_programs_with_the_same_settings_are_named_together() -> None:
    text = " ".join(render([compared((COMPILED, 0.9))], "table").split())
    assert (
        "trl, trainer, axolotl, llama-factory torch_compile: true, torch_compile_backend: inductor"
        in text
    )


@pytest.mark.parametrize(
    "others",
    [
        [(COMPILED, 1.3)],
        [(COMPILED, 1.0)],
        [(with_stack("mine", "padding-free", "unknown"), 1.2)],
    ],
)
def test_without_a_winner_nothing_is_said(others: list[tuple[Experiment, float]]) -> None:
    summary = compared(*others)
    assert "equivalents" not in summary.sections
    assert not summary.notices


def test_a_winner_without_a_counterpart_is_left_alone() -> None:
    assert "equivalents" not in compared((with_stack("lora"), 0.7)).sections


def test_settings_of_a_stack_are_counterparts_too() -> None:
    experiment = with_stack("recompute", **{"train.gradient_checkpointing": True})
    (row,) = compared((experiment, 0.7)).sections["equivalents"]
    assert row.programs["trl"] == {"gradient_checkpointing": True}


def test_plugins_show_lists_all_counterparts_of_a_plugin() -> None:
    found = json.loads(call("plugins", "show", "padding-free", "--format", "json").out)
    first, *others = found["equivalents"]
    assert first["program"] == "trl" and first["setting"] == "padding_free: true"
    assert first["when"] == "sampler: same, not task.use: dpo"
    assert others[0]["setting"] == "max_length: null, pad_to_multiple_of: null"
    assert "cuts no rows" in others[0]["note"]
    assert others[-1]["program"] == "trainer, accelerate" and not others[-1]["setting"]
    assert "Equivalents:" in call("plugins", "show", "padding-free").out


def test_a_plugin_without_counterparts_says_so() -> None:
    assert json.loads(call("plugins", "show", "null", "--format", "json").out)["equivalents"] == []
