"""Automatic sizes of a scenario: determined once, equal for every stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.lengths import summarize_lengths
from accel_bench_advise.estimates.target import target_of
from accel_bench_advise.sizes import (
    Chooser,
    FittingBatch,
    length_choice,
    longest_of,
    power_of_two,
)
from analysis_factory import make_result
from cli.program import call

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.planning.sizes import Sizing, plan_with_sizes
from accel_bench.result import Result, Status
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.settings import Evaluate
from accel_bench.testing import run_scenario

LENGTHS = "{use: synthetic, sequence_length: auto, lengths: {median: 20, sigma: 0.5, minimum: 4}}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep cached sizes for one test only."""
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))


def write(folder: Path, data: str = LENGTHS, train: str = "{}", more: str = "") -> Path:
    """A scenario of a small model with two stacks."""
    path = folder / "sized.yaml"
    path.write_text(
        "name: sized\n"
        "model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 1, hidden_size: 64}}\n"
        f"data: {data}\n"
        f"train: {train}\n"
        "resources: {device: cpu, threads: 1}\n"
        "stacks: {baseline: [], clipped: {set: {train.max_grad_norm: 1.0}}}\n"
        "measure: {warmup: 1, steps: 2, phase_steps: 0, rounds: 1}\n" + more
    )
    return path


def planned(path: Path, **changes: Any) -> Plan:
    """The plan of a file."""
    return make_plan(read_draft(path), read_machine(), PlanRequest(**changes))


def sizes(plan: Plan) -> set[tuple[int, int]]:
    """Sequence length and micro-batch of all experiments."""
    scenarios = [one.experiment.scenario for one in plan.planned]
    return {(one.data.sequence_length, one.train.micro_batch_size) for one in scenarios}


# The plan.


def test_a_plan_says_what_stands_for_auto_and_other_commands_want_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, train="{micro_batch_size: auto, global_batch_size: 24}")
    with pytest.raises(ScenarioError, match=r"sized.yaml:3:.* data.sequence_length: auto is work"):
        planned(path)
    plan = planned(path, stand_ins=True)
    assert sizes(plan) == {(512, 1)}
    assert len([text for text in plan.notices if "worked out before round 1" in text]) == 2


def test_auto_in_one_stack_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    override = (("stacks.clipped.set", {"train.micro_batch_size": "auto"}),)
    with pytest.raises(ScenarioError, match="auto is alike for every stack"):
        planned(path, overrides=override, stand_ins=True)


def test_a_length_is_at_most_what_the_model_was_made_for(tmp_path: Path) -> None:
    path = write(tmp_path, data="{sequence_length: 8}")
    scenario = planned(path).planned[0].experiment.scenario
    short, long = summarize_lengths(list(range(1, 101))), summarize_lengths([9000] * 10)
    value, because = length_choice(short, scenario)
    assert value == 96 and because.startswith("95 % of 100 samples have at most 95")
    cut, because = length_choice(long, scenario)
    assert 0 < cut < 9000
    assert f"the model was made for {cut:,}" in because


# Lengths.


def test_lengths_are_read_once_and_become_numbers_of_every_stack(tmp_path: Path) -> None:
    path = write(tmp_path)
    machine, draft, said = read_machine(), read_draft(path), list[str]()
    plan = plan_with_sizes(draft, machine, PlanRequest(notify=said.append))
    ((length, micro),) = sizes(plan)
    assert micro == 1
    assert 24 <= length <= 96
    assert length % 8 == 0
    assert said == ["data.sequence_length: auto: reading the lengths of the data's samples"]
    for one in plan.planned:
        (notice,) = [text for text in one.experiment.notices if "for auto" in text]
        assert notice.startswith(f"data.sequence_length: {length} for auto: 95 % of 512 samples")
    # Whoever writes the number runs the same experiment.
    written = planned(path, overrides=(("data.sequence_length", length),))
    assert {one.experiment.id for one in written.planned} == {
        one.experiment.id for one in plan.planned
    }
    again = plan_with_sizes(draft, machine, PlanRequest(notify=said.append), work_out=False)
    assert sizes(again) == {(length, 1)}
    assert not again.open_sizes
    assert len(said) == 1
    done = call("run", str(path), "--dry-run")
    assert f"data.sequence_length: {length} for auto" in " ".join(done.out.split())


def test_data_without_lengths_of_its_own_is_told_to_give_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, data="{use: synthetic, sequence_length: auto}")
    with pytest.raises(ScenarioError, match="made-up samples have the length that you choose"):
        run_scenario(path)


# Micro-batches.


class Planted(Chooser):
    """Sizing whose estimate is 16 and whose trials of more than `fits` run out of memory."""

    fits = 4
    failure = Status.OOM
    needs: Mapping[str, float] = {}
    tried: Sequence[tuple[str, int]] = ()
    evaluations: Sequence[Evaluate] = ()

    def _estimated(self, stacks: Sequence[Planned], search: int) -> FittingBatch:
        return FittingBatch(value=min(16, search), because="planted", **self.needs)

    def _trial(self, planned: Planned, folder: Path) -> Result:
        experiment = planned.experiment
        size = experiment.scenario.train.micro_batch_size
        type(self).tried = (*self.tried, (experiment.stack.name, size))
        type(self).evaluations = (*self.evaluations, experiment.scenario.evaluate)
        status = self.failure if size > self.fits else Status.OK
        return make_result(experiment).model_copy(update={"status": status})


def planted(path: Path, fits: int, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan with the micro-batch found by planted trials."""
    monkeypatch.setattr(Planted, "fits", fits)
    monkeypatch.setattr(Planted, "tried", ())
    monkeypatch.setattr(Planted, "evaluations", ())
    monkeypatch.setattr("accel_bench_advise.sizes.Chooser", Planted)
    request = PlanRequest(notify=lambda text: None)
    return plan_with_sizes(read_draft(path), read_machine(), request)


def test_a_micro_batch_that_runs_out_of_memory_in_a_trial_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, data="{sequence_length: 8}", train="{micro_batch_size: auto}")
    plan = planted(path, 4, monkeypatch)
    assert sizes(plan) == {(8, 4)}
    assert Planted.tried == (
        ("baseline", 16),
        ("baseline", 8),
        ("baseline", 4),
        ("clipped", 4),
    )
    (notice,) = plan.planned[0].experiment.notices
    assert notice.endswith("planted; 16 was estimated, and a trial of 8 failed: oom")
    assert sizes(planted(path, 4, monkeypatch)) == {(8, 4)}
    assert Planted.tried == ()  # it is kept


def test_a_kept_micro_batch_is_taken_while_the_free_memory_gives_the_same_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_free(memory_bytes: int) -> bool:
        """Plan with so much free memory; return whether a trial was run."""
        target = target_of(read_machine(), None)._replace(memory_bytes=memory_bytes)
        monkeypatch.setattr("accel_bench_advise.sizes.device_now", lambda machine: target)
        assert sizes(planted(path, 64, monkeypatch)) == {(8, 16)}
        return bool(Planted.tried)

    path = write(tmp_path, data="{sequence_length: 8}", train="{micro_batch_size: auto}")
    monkeypatch.setattr(Planted, "needs", {"least_bytes": 100, "most_bytes": 200})
    assert [with_free(free) for free in (150, 100, 199)] == [True, False, False]
    assert with_free(99)
    assert with_free(200)


@pytest.mark.box
@pytest.mark.parametrize("task", ["embedding", "image-text", "speech-pretraining"])
def test_where_the_loss_depends_on_the_micro_batch_its_size_is_no_choice(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = {
        "embedding": "model: {id: bert-base-uncased}\ndata: synthetic-pairs\n",
        "image-text": "model: {id: tiny-clip-cpu}\ndata: {use: captions, image_size: 32}\n",
        "speech-pretraining": "model: {id: tiny-wav2vec2-cpu, overrides: {mask_time_prob: 0.05}}\n"
        "data: speech\n",
    }
    path = tmp_path / "dependent.yaml"
    path.write_text(
        f"name: dependent\ntask: {task}\n{works[task]}"
        "train: {micro_batch_size: auto}\nresources: {device: cpu}\nstacks: {baseline: []}\n"
    )
    if task == "speech-pretraining":
        with pytest.raises(ScenarioError, match=f"auto: the loss of task '{task}' depends on"):
            planted(path, 64, monkeypatch)
    else:  # These are skipped with the stand-in, one sample.
        nothing = plan_with_sizes(read_draft(path), read_machine(), PlanRequest()).nothing
        assert "give train.micro_batch_size, 2 or more" in nothing


def test_a_global_batch_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = "{micro_batch_size: auto, global_batch_size: 24}"
    plan = planted(write(tmp_path, data="{sequence_length: 8}", train=train), 64, monkeypatch)
    assert sizes(plan) == {(8, 8)}
    assert {one.experiment.scenario.train.gradient_accumulation for one in plan.planned} == {3}


def test_the_size_for_one_global_batch_is_not_taken_for_an_accumulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "{micro_batch_size: auto, %s: 4}"
    data = "{sequence_length: 8}"
    whole = write(tmp_path, data=data, train=given % "global_batch_size")
    assert sizes(planted(whole, 64, monkeypatch)) == {(8, 4)}
    accumulated = write(tmp_path, data=data, train=given % "gradient_accumulation")
    assert sizes(planted(accumulated, 64, monkeypatch)) == {(8, 16)}


def test_a_trial_trains_no_learning_curve_and_evaluates_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path,
        data="{sequence_length: 8, held_out: 0.25}",
        train="{micro_batch_size: auto}",
        more="evaluate: {steps: 300, every: 10}\n",
    )
    plan = planted(path, 64, monkeypatch)
    assert {(one.steps, one.every, one.batches) for one in Planted.evaluations} == {(0, None, 1)}
    assert plan.planned[0].experiment.scenario.evaluate.steps == 300


def test_each_sweep_point_has_sizes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path,
        data="{}",
        train="{micro_batch_size: auto}",
        more="sweep: {data.sequence_length: [8, 16]}\n",
    )
    assert sizes(planted(path, 64, monkeypatch)) == {(8, 16), (16, 16)}
    assert len(Planted.tried) == 4


def test_where_not_even_one_sample_fits_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, data="{sequence_length: 8}", train="{micro_batch_size: auto}")
    with pytest.raises(ScenarioError, match="micro_batch_size: auto: even 1 does not run"):
        planted(path, 0, monkeypatch)


def test_a_trial_that_fails_for_another_reason_ends_the_search_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, data="{sequence_length: 8}", train="{micro_batch_size: auto}")
    monkeypatch.setattr(Planted, "failure", Status.FAILED)
    with pytest.raises(ScenarioError, match="the trial of 16 with baseline ended with failed"):
        planted(path, 4, monkeypatch)
    assert Planted.tried == (("baseline", 16),)


def test_positions_are_those_of_the_text_and_behind_padding() -> None:
    assert longest_of({"text_config": {"max_position_embeddings": 77}}) == 77
    roberta = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert longest_of(roberta) == 512
    assert longest_of({"model_type": "vit"}) is None


class Estimated(Chooser):
    """Estimator for which the baseline fits with 5 samples, and the other stack is unknown."""

    def _largest(self, estimator: Any, planned: Planned, search: int) -> int | None:
        return 5 if planned.experiment.stack.name == "baseline" else None


def test_a_stack_that_cannot_be_estimated_is_tried_alone(tmp_path: Path) -> None:
    path = write(tmp_path, data="{sequence_length: 8}")
    plan = planned(path)
    stacks = plan.planned
    point = stacks[0].experiment.point
    sizing = Sizing(read_draft(path), read_machine(), PlanRequest(), True, plan, point)
    chooser = Estimated(sizing)
    found = chooser._estimated(stacks, 1024)
    assert found.value == 4
    assert found.least_bytes < (found.most_bytes or 0)
    assert found.because.startswith("the largest power of two with which every stack that can be")
    with pytest.raises(ScenarioError, match="no stack can be estimated; give a number"):
        chooser._estimated(stacks[1:], 1024)


def test_powers_of_two() -> None:
    assert [power_of_two(value) for value in (1, 2, 3, 7, 8, 1023)] == [1, 2, 2, 4, 8, 512]


@pytest.mark.release
def test_the_memory_that_there_is_decides_on_the_micro_batch(tmp_path: Path) -> None:
    """Estimated by a simulation, tried by real steps."""
    path = write(tmp_path, train="{micro_batch_size: auto}")
    machine = read_machine().model_copy(update={"memory_bytes": 2**30})
    said = list[str]()
    plan = plan_with_sizes(read_draft(path), machine, PlanRequest(notify=said.append))
    ((_, micro),) = sizes(plan)
    assert 1 <= micro <= 256
    assert f"train.micro_batch_size: auto: trying {micro:,} with clipped" in said
