"""Images and speech: every task trains, with transformers' loss, and learns."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from accel_bench_media.tasks.image_text_impl import contrastive_loss
from accel_bench_media.tasks.speech import CTC, CTCOptions, SpeechPretraining
from media_works import SAMPLES, TRAIN, WORKS, built_run
from transformers import Trainer, TrainingArguments

from accel_bench import Result, Status, Task
from accel_bench.errors import ScenarioError
from accel_bench.flops.formulas import model_flops
from accel_bench.testing import make_experiment, run_scenario
from accel_bench.worker.flops.trace import read_workload

CLOSE = 1e-5
"""Maximum relative distance of equal losses."""

CHECKPOINTED = {"set": {"train.gradient_checkpointing": True}}


def results_of(folder: Path, work: str, **changes: Any) -> dict[str, Result]:
    """Run a work, once with each of its stacks."""
    written = {
        "name": "media",
        **WORKS[work],
        "train": TRAIN,
        "resources": {"threads": 1},
        "stacks": {"baseline": [], "recomputed": CHECKPOINTED},
        "measure": {"warmup": 2, "steps": 10, "rounds": 1, "phase_steps": 1},
        **changes,
    }
    path = folder / "media.yaml"
    path.write_text(yaml.safe_dump(written))
    return run_scenario(path)


def losses_of(result: Result) -> list[float]:
    """Losses of the requested steps, from the first one; a disturbed window is measured again in
    later steps."""
    window = result.ranks[0].window
    assert window is not None
    steps = (*window.warmup, *window.discarded, *window.samples)
    found = [sample.loss for sample in steps[: len(window.warmup) + len(window.samples)]]
    assert None not in found
    return [float(loss or 0) for loss in found]


@pytest.mark.box
@pytest.mark.parametrize("work", WORKS)
def test_it_learns_and_every_trained_tensor_gets_a_gradient(work: str, tmp_path: Path) -> None:
    stacks = {"baseline": [], "recomputed": CHECKPOINTED, "trainer": ["hf-trainer"]}
    results = results_of(tmp_path, work, stacks=stacks)
    kept, recomputed = results["baseline"], results["recomputed"]
    assert kept.status is Status.OK, kept.reasons
    losses = losses_of(kept)
    assert losses_of(results["trainer"]) == pytest.approx(losses, rel=CLOSE)
    assert sum(losses[-4:]) < sum(losses[:4])
    flow = kept.ranks[0].effective.gradient_flow
    assert flow is not None and flow.tensors_with_gradient == flow.trained_tensors > 20
    if work == "resnet":
        assert "does not support activation checkpointing" in recomputed.reasons[0]
        return
    assert recomputed.status is Status.OK, recomputed.reasons
    assert losses_of(recomputed) == pytest.approx(losses, rel=CLOSE)
    blocks = recomputed.ranks[0].effective.checkpointed_blocks
    assert blocks is not None and blocks.checkpointed == blocks.blocks > 0


def test_an_image_with_the_same_caption_is_no_negative() -> None:
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": torch.tensor([[1, 2], [3, 4], [1, 2]])}
    loss = contrastive_loss(lambda **_: SimpleNamespace(logits_per_text=scores), inputs, 1)
    kept = [[0, 1], [0, 1, 2], [1, 2]]
    both = [
        each[row, columns].logsumexp(0) - each[row, row]
        for each in (scores, scores.T)
        for row, columns in enumerate(kept)
    ]
    assert loss.item() == pytest.approx(float(sum(both)) / 2, rel=CLOSE)


@pytest.mark.parametrize(
    ("task", "config", "drawn"),
    [
        (SpeechPretraining, {}, "Gumbel noise"),
        (CTC, {"mask_time_prob": 0.05}, "SpecAugment"),
        (CTC, {"mask_time_prob": 0.05, "apply_spec_augment": False}, ""),
        (CTC, {"mask_time_prob": 0.0}, ""),
    ],
)
def test_a_task_says_what_its_steps_draw_at_random(
    task: type[Task[Any]], config: dict[str, Any], drawn: str
) -> None:
    model = SimpleNamespace(config=SimpleNamespace(**config))
    assert task(task.Options()).random_operations(model) == drawn


def test_pretraining_hides_about_half_of_an_utterance(tmp_path: Path) -> None:
    run = built_run(tmp_path, "wav2vec2 without transcripts")
    hidden = [batch.inputs["mask_time_indices"].float().mean() for batch in islice(run.batches, 4)]
    assert 0.35 < float(sum(hidden)) / 4 < 0.65


def test_a_model_without_an_embedding_of_hidden_frames_is_refused(tmp_path: Path) -> None:
    work = "wav2vec2 without transcripts"
    model = {**WORKS[work]["model"], "overrides": {"mask_time_prob": 0.0}}
    found = results_of(tmp_path, work, model=model, stacks={"baseline": []})["baseline"]
    assert found.status is Status.SKIPPED
    assert "model.overrides.mask_time_prob: 0.05" in found.reasons[0]


def own_loss_of(model: Any, inputs: dict[str, Any], work: str) -> torch.Tensor:
    """Return transformers' loss of a micro-batch, of all its elements."""
    if work == "clip":
        return model(**inputs, return_loss=True).loss
    if work == "whisper":
        # transformers shifts the labels itself.
        chosen = {name: inputs[name] for name in ("input_features", "labels")}
        return model(**chosen).loss
    return model(**inputs).loss


@pytest.mark.parametrize("work", WORKS)
def test_the_loss_is_that_of_transformers(work: str, tmp_path: Path) -> None:
    # A caption each: transformers takes equal ones for negatives.
    distinct = {"classes": SAMPLES} if work == "clip" else {}
    run = built_run(tmp_path, work, **distinct)
    for batch in islice(run.batches, 3):
        inputs = dict(batch.inputs)
        torch.manual_seed(0)
        ours = run.loss(run.model, inputs, batch.tokens.supervised)
        torch.manual_seed(0)
        theirs = own_loss_of(run.model, inputs, work)
        summed = work in ("wav2vec2", "wav2vec2 without transcripts")
        expected = theirs / batch.tokens.supervised if summed else theirs
        assert ours.item() == pytest.approx(expected.item(), rel=CLOSE)


@pytest.mark.parametrize("work", WORKS)
def test_flops_are_those_that_torch_counts(work: str, tmp_path: Path) -> None:
    from benchmarks.flops_ratio import torch_flops

    run = built_run(tmp_path, work)
    batch = next(run.batches)
    workload = read_workload(run, batch)
    assert workload is not None, run.workload_reason
    width = batch.tokens.processed / batch.sequences
    ours = model_flops(workload, width).non_causal * batch.tokens.processed
    assert ours == pytest.approx(torch_flops(run, batch), rel=1e-3)


@pytest.mark.parametrize("work", WORKS)
def test_counts_are_what_the_tensors_hold(work: str, tmp_path: Path) -> None:
    run = built_run(tmp_path, work)
    for batch in islice(run.batches, 3):
        held = run.task.held(batch)
        for kind in ("processed", "real", "supervised"):
            least, most = getattr(held, kind)
            assert least <= getattr(batch.tokens, kind) <= most


@pytest.mark.parametrize("work", WORKS)
def test_two_micro_batches_add_up_to_the_supervised_of_their_step(
    work: str, tmp_path: Path
) -> None:
    run = built_run(tmp_path, work, train={"gradient_accumulation": 2})
    batches = list(islice(run.batches, 2))
    counted = sum(batch.tokens.supervised for batch in batches)
    assert {batch.supervised_in_step for batch in batches} == {counted}


def test_it_trains_as_transformers_trainer_does(tmp_path: Path) -> None:
    """Five steps of Trainer itself on the same samples, with its own loss and optimizer."""
    run = built_run(tmp_path, "vit")
    batches = list(islice(run.batches, 5))
    model = run.model
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    ours = []
    for batch in batches:
        loss = run.loss(model, batch.inputs, batch.supervised_in_step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ours.append(loss.item())
    model.load_state_dict(start)
    assert trainer_losses(model, batches, tmp_path) == pytest.approx(ours, rel=CLOSE)


def trainer_losses(model: Any, batches: list[Any], folder: Path) -> list[float]:
    """Return the losses that Trainer computes in a step for each micro-batch."""
    losses: list[float] = []

    class Recording(Trainer):
        def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*arguments, **named)
            losses.append(loss.item())
            return loss

    samples = [
        {name: tensor[row] for name, tensor in batch.inputs.items()}
        for batch in batches
        for row in range(batch.sequences)
    ]
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batches[0].sequences,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Recording(model=model, args=arguments, train_dataset=samples).train()
    return losses


def test_a_frozen_encoder_trains_the_projection_alone(tmp_path: Path) -> None:
    task = {"use": "ctc", "freeze_encoder_for_n_steps": 1_000}
    found = results_of(tmp_path, "wav2vec2", task=task, stacks={"baseline": []})["baseline"]
    assert found.status is Status.OK, found.reasons
    rank = found.ranks[0]
    assert rank.evidence["ctc"] == {"encoder_frozen": True, "trained_encoder_tensors": 0}
    flow = rank.effective.gradient_flow
    assert flow is not None and set(flow.gradient_norms) == {"lm_head.weight", "lm_head.bias"}


@pytest.mark.box
def test_an_encoder_that_starts_to_train_in_the_warmup_is_measured_as_it_trains(
    tmp_path: Path,
) -> None:
    steps = {"warmup": 5, "steps": 5, "rounds": 1, "phase_steps": 1}
    stacks = {"baseline": [], "trainer": ["hf-trainer"]}

    def losses(frozen: int, **train: int) -> list[float]:
        """Losses of a run whose encoder is frozen for so many steps."""
        task = {"use": "ctc", "freeze_encoder_for_n_steps": frozen}
        changes = {"task": task, "measure": steps, "stacks": stacks, "train": {**TRAIN, **train}}
        found = results_of(tmp_path, "wav2vec2", **changes)
        for result in found.values():
            assert result.status is Status.OK, result.reasons
            (rank,) = result.ranks
            evidence, flow = rank.evidence["ctc"], rank.effective.gradient_flow
            assert isinstance(evidence, dict) and flow is not None and rank.update is not None
            assert bool(evidence["trained_encoder_tensors"]) is (frozen < 10)
            assert len(flow.gradient_norms) == flow.tensors_with_gradient
            assert (len(flow.gradient_norms) > 20) is (frozen < 10)
            assert len(rank.update.tensors) == len(flow.gradient_norms)
        baseline, trainer = map(losses_of, found.values())
        assert trainer == pytest.approx(baseline, rel=CLOSE)
        if frozen == 3:
            assert found["baseline"].ranks[0].evidence["ctc"]["encoder_trains_from_step"] == 3
        return baseline

    started, never, always = losses(3), losses(1_000), losses(0)
    # The step after the third is the first whose gradient reaches the encoder.
    assert started[:4] == pytest.approx(never[:4], rel=CLOSE)
    assert started[4:] != pytest.approx(never[4:], rel=1e-3)
    assert started[1:] != pytest.approx(always[1:], rel=1e-3)


@pytest.mark.parametrize(
    ("frozen", "changes", "reason"),
    [
        (5, {}, "start to train within the 12 steps"),
        (2, {}, "set measure.warmup to 3 or more"),
        (12, {"evaluate": {"steps": 4}}, "within the 16 steps"),
    ],
)
def test_an_encoder_that_would_start_to_train_while_measured_is_refused(
    frozen: int, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    task = {"use": "ctc", "freeze_encoder_for_n_steps": frozen}
    changes = {"task": task, "stacks": {"baseline": []}, **changes}
    found = results_of(tmp_path, "wav2vec2", **changes)["baseline"]
    assert found.status is Status.SKIPPED
    assert reason in found.reasons[0]


def test_an_encoder_starts_to_train_on_one_device_alone() -> None:
    for devices, reasons in ((1, 0), (2, 1)):
        work = {**WORKS["wav2vec2"], "measure": {"warmup": 3}, "resources": {"devices": devices}}
        task = CTC(CTCOptions(freeze_encoder_for_n_steps=2))
        found = list(task.check_scenario(make_experiment(work)))
        assert len(found) == reasons
        assert all("needs one device" in reason for reason in found)


@pytest.mark.parametrize("work", ["wav2vec2", "wav2vec2 without transcripts", "whisper"])
def test_layers_that_chance_leaves_out_are_refused(work: str, tmp_path: Path) -> None:
    key = "encoder_layerdrop" if work == "whisper" else "layerdrop"
    model = {**WORKS[work]["model"], "overrides": {key: 0.1}}
    found = results_of(tmp_path, work, model=model, stacks={"baseline": []})["baseline"]
    assert found.status is Status.SKIPPED
    assert f"model.overrides.{key}: 0.0" in found.reasons[0]


def test_data_of_another_task_is_refused(tmp_path: Path) -> None:
    data = WORKS["vit"]["data"]
    found = results_of(tmp_path, "wav2vec2", data=data, stacks={"baseline": []})["baseline"]
    assert found.status is Status.SKIPPED and "images" in found.reasons[0]


def test_an_image_of_another_size_is_refused_before_anything_starts(tmp_path: Path) -> None:
    data = {**WORKS["vit"]["data"], "image_size": 64}
    found = results_of(tmp_path, "vit", data=data, stacks={"baseline": []})["baseline"]
    assert found.status is Status.SKIPPED and "data.image_size: 32" in found.reasons[0]


def test_more_classes_than_the_model_has_are_refused(tmp_path: Path) -> None:
    data = {**WORKS["resnet"]["data"], "classes": 101}
    found = results_of(tmp_path, "resnet", data=data, stacks={"baseline": []})["baseline"]
    assert found.status is Status.SKIPPED and "100 labels" in found.reasons[0]


def test_audio_that_a_whisper_is_too_short_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"the model takes 32,000: lower data.max_audio_len"):
        built_run(tmp_path, "whisper", max_audio_len=50_000)


@pytest.mark.release
@pytest.mark.parametrize("work", WORKS)
def test_compiled_blocks_learn_the_same(work: str, tmp_path: Path) -> None:
    stacks = {"baseline": [], "compiled": ["torch-compile"]}
    results = results_of(tmp_path, work, stacks=stacks)
    assert results["compiled"].status is Status.OK, results["compiled"].reasons
    losses = [losses_of(results[name]) for name in stacks]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("work", ["vit", "wav2vec2 without transcripts", "whisper", "clip"])
def test_images_and_utterances_are_held_out_too(work: str, tmp_path: Path) -> None:
    run = built_run(tmp_path, work, held_out=0.25)
    epoch = [batch for batch, _ in zip(run.batches, range(6), strict=False)]
    found = list(run.evaluation_batches)
    assert [batch.sequences for batch in found] == [4, 4]
    first = "input_features" if work == "whisper" else next(iter(found[0].inputs))
    rows = [row.numpy().tobytes() for batch in epoch for row in batch.inputs[first]]
    held = [row.numpy().tobytes() for batch in found for row in batch.inputs[first]]
    assert len({*rows, *held}) == SAMPLES
    with torch.no_grad():
        losses = [run.loss(run.model, one.inputs, one.supervised_in_step) for one in found]
    assert 0 < float(sum(losses)) < 1000
    assert {batch.supervised_in_step for batch in found} == {
        sum(batch.tokens.supervised for batch in found)
    }
