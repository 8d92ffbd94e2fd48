"""Evaluations and the learning curve: what they are of, and that training does not notice them."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.result import LearningCurve, Result, Status
from accel_bench.testing import run_scenario
from accel_bench.worker.answers import EXPECTED
from accel_bench.worker.learning import Evaluator

SCENARIO = """\
name: learning
model:
  id: tiny-llama-cpu
  overrides: {hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
    num_key_value_heads: 1, vocab_size: 64, attention_dropout: 0.3}
data: {use: synthetic, sequence_length: 16, vocab_size: 64, samples: 60, held_out: 11}
train: {micro_batch_size: 4, learning_rate: 1e-2}
resources: {device: cpu, threads: 1}
measure: {warmup: 2, steps: 3, rounds: 1, phase_steps: 1}
evaluate: {steps: 5, every: 2}
stacks: {baseline: []}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learning") / "learning.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="module")
def run(file: Path) -> Any:
    """Run the scenario with settings, each combination once."""

    @functools.cache
    def once(changes: tuple[tuple[str, Any], ...]) -> Result:
        return run_scenario(file, settings=dict(changes))["baseline"]

    def with_settings(**changes: Any) -> Result:
        found = once(tuple((key.replace("__", "."), value) for key, value in changes.items()))
        assert found.status is Status.OK, found.reasons
        return found

    return with_settings


def curve(result: Result) -> LearningCurve:
    found = result.ranks[0].learning
    assert found is not None
    return found


def losses(result: Result) -> list[float | None]:
    """All training losses: of the warm-up, the window and the learning curve."""
    window, learning = result.ranks[0].window, result.ranks[0].learning
    assert window is not None
    later = learning.steps if learning else ()
    return [sample.loss for sample in (*window.warmup, *window.samples, *later)]


def test_it_evaluates_before_training_after_the_window_and_every_so_many_steps(run: Any) -> None:
    found = curve(run())
    assert [one.step for one in found.evaluations] == [0, 5, 7, 9, 10]
    assert [sample.step for sample in found.steps] == [5, 6, 7, 8, 9]
    assert [one.step for one in found.memory] == [6, 7, 8, 9, 10]
    assert {(one.sequences, one.batches) for one in found.evaluations} == {(11, 3)}
    assert {one.supervised_tokens for one in found.evaluations} == {11 * 15}
    assert found.evaluations[-1].loss < found.evaluations[0].loss
    assert found.evaluations[0].loss == pytest.approx(math.log(64), rel=0.05)


def test_the_training_losses_are_the_same_bit_for_bit_without_an_evaluation(run: Any) -> None:
    """Dropout is on: an evaluation that drew random numbers would show."""
    with_evaluations, without = run(), run(evaluate__batches=0, evaluate__every=None)
    assert curve(without).evaluations == ()
    assert len(losses(without)) == 10
    assert losses(with_evaluations) == losses(without)


@pytest.mark.box
def test_neither_the_size_of_the_batches_nor_the_engine_changes_the_values(run: Any) -> None:
    values = [
        [one.loss for one in curve(found).evaluations]
        for found in (run(), run(evaluate__micro_batch_size=11), run(engine__use="hf-trainer"))
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-6)
    assert values[2] == pytest.approx(values[0], rel=1e-6)


def test_few_batches_evaluate_the_first_of_the_held_out_samples(run: Any) -> None:
    found = curve(run(evaluate__batches=1, evaluate__micro_batch_size=2, evaluate__steps=0,
                      evaluate__every=None))  # fmt: skip
    assert [(one.step, one.sequences) for one in found.evaluations] == [(0, 2), (5, 2)]
    assert found.steps == ()


def test_steps_alone_give_a_curve_of_the_training_loss(run: Any) -> None:
    found = run(data__held_out=0, evaluate__every=None)
    assert curve(found).evaluations == ()
    assert len(losses(found)) == 10


def test_what_is_not_asked_for_leaves_nothing(run: Any) -> None:
    found = run(data__held_out=0, evaluate__every=None, evaluate__steps=0)
    assert found.ranks[0].learning is None
    assert "evaluate" not in {stage.name for stage in found.ranks[0].stages}


def test_stages_evaluate_and_predict_stand_in_the_life_of_a_rank(run: Any) -> None:
    names = [stage.name for stage in run().ranks[0].stages]
    assert names.index("build") < names.index("evaluate") < names.index("warm-up")
    assert names[-4:] == ["evaluate", "learning", "evaluate", "predict"]


def test_evaluations_change_nothing_that_is_compared(run: Any) -> None:
    both = run(), run(evaluate__batches=0, evaluate__every=None)
    updates = [one.ranks[0].update.tensors for one in both]
    assert updates[0] == updates[1]
    flows = [one.ranks[0].effective.gradient_flow for one in both]
    assert flows[0] == flows[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.held_out": 0}, "evaluate.every needs data.held_out"),
        ({"evaluate.steps": 0}, "evaluate.every needs evaluate.steps"),
        ({"data.held_out": 1.5}, "held_out"),
        ({"data.held_out": -1}, "held_out"),
        ({"evaluate.steps": 100_000}, "evaluate.steps 100000"),
    ],
)
def test_settings_that_lead_to_no_evaluation_are_refused(
    file: Path, settings: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        run_scenario(file, settings=settings)


@pytest.mark.parametrize("more", [{}, {"evaluate": {"batches": 0}}], ids=["evaluated", "never"])
def test_data_that_holds_nothing_out_is_refused_before_it_starts(
    file: Path, more: Mapping[str, Any]
) -> None:
    with pytest.raises(PluginError, match="plugin 'null' holds no samples out"):
        run_scenario(file, settings={"data": {"use": "null", "held_out": 2}, **more})


class Noisy(torch.nn.Module):
    """A model that counts its calls and changes with its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Dropout(0.5)
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.modes: list[bool] = []

    def forward(self, labels: Any = None, num_items_in_batch: int = 1) -> Any:
        self.modes += [self.training, torch.is_grad_enabled()]
        torch.rand(3)
        raise ValueError("this batch cannot be computed")


def test_an_evaluation_that_fails_leaves_the_model_in_its_modes(make_run: Any) -> None:
    run: Run = make_run()
    run.model = Noisy()
    run.model.inner.eval()
    state = torch.get_rng_state()
    batch = Batch({}, 1, TokenCounts(1, 1, 1), 1)
    with pytest.raises(ValueError, match="this batch"):
        Evaluator(run, [batch], lambda: None).evaluate(0)
    assert run.model.modes == [False, False]
    assert run.model.training
    assert not run.model.inner.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


class SlowSamples:
    """Two batches whose samples are read before the first of them."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.read = seconds, 0

    def __iter__(self) -> Iterator[Batch]:
        self.read += 1
        time.sleep(self.seconds)
        yield from [Batch({}, 1, TokenCounts(1, 1, 1), 1)] * 2


def test_the_speed_of_an_evaluation_is_that_of_its_batches_alone(make_run: Any) -> None:
    run: Run = make_run()
    run.model = torch.nn.Linear(1, 1)
    run.loss = lambda *_: torch.ones(())
    samples = SlowSamples(0.5)
    found = Evaluator(run, samples, lambda: None).evaluate(0)
    assert (found.batches, found.loss, samples.read) == (2, 2.0, 1)
    assert found.seconds < 0.4


def test_batches_that_are_used_up_once_are_no_answer(make_run: Any) -> None:
    expected, accepts = EXPECTED["build_evaluation_batches"]
    assert "again and again" in expected
    assert accepts([1], make_run())
    assert not accepts(iter([1]), make_run())


@pytest.mark.box
@pytest.mark.parametrize(
    "scenario",
    [
        "translation-cpu",
        pytest.param("masked-lm-cpu", marks=pytest.mark.release),
        pytest.param("embedding-cpu", marks=pytest.mark.release),
    ],
)
def test_other_tasks_are_evaluated_by_their_own_loss(scenario: str) -> None:
    few = {"data.limit_bytes": 100_000} if scenario == "masked-lm-cpu" else {"data.samples": 200}
    measure = {"measure.steps": 6, "measure.phase_steps": 0, "train.learning_rate": 5e-3}
    settings = {**few, **measure, "data.held_out": 17}
    (found,) = run_scenario(scenario, only=["baseline"], settings=settings).values()
    assert found.status is Status.OK, found.reasons
    before, after = curve(found).evaluations
    assert before.sequences == after.sequences == 17
    assert before.loss is not None
    assert after.loss is not None
    assert 0 < after.loss < before.loss
