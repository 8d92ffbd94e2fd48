"""Simulated steps of images, speech, pairs and preferences use as much memory as real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.schema import BatchShape, SimulationRequest
from accel_bench_advise.simulation.simulate import SimulatedRun
from kit import shrunk
from real_steps import experiment_of, first_batch

from accel_bench.errors import ScenarioError
from accel_bench.testing import make_run

from .simulated_steps import compare, simulated

pytestmark = pytest.mark.box

CLOSE = 0.05
"""Maximum deviation of a simulated peak from the measured one, as in docs/estimate.md."""

LLAMA = {
    "id": "llama-2-7b",
    "overrides": {
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 1024,
    },
}
BERT = {
    "id": "bert-base-uncased",
    "overrides": {
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 1024,
    },
}
T5 = {
    "id": "t5-small",
    "overrides": {"num_layers": 2, "num_decoder_layers": 2, "d_model": 128, "vocab_size": 1024},
}
LORA = {"use": "lora", "r": 4, "target_modules": "all-linear"}
PAIRS = {"use": "synthetic-pairs", "vocab_size": 1000, "samples": 64, "sequence_length": 64}
PREFERENCES = {
    "use": "preferences",
    "source": "synthetic",
    "vocab_size": 400,
    "padding": "max_length",
}
IMAGES = {"use": "images", "image_size": 32, "samples": 64}
CAPTIONS = {"use": "captions", "source": "glyphs", "image_size": 32, "samples": 64}
SPEECH = {"use": "speech", "max_audio_len": 8_000, "samples": 64, "padding": "max_length"}
WIDE = {"conv_dim": [256, 128, 64]}
"""Settings with large activations, beside which NumPy's memory of real batches is small."""

RESNET = {"id": "tiny-resnet-cpu", "overrides": {"depths": [6, 6]}}
PRETRAINED = {"id": "tiny-wav2vec2-cpu", "overrides": {**WIDE, "mask_time_prob": 0.05}}
LONG_SPEECH = {**SPEECH, "min_audio_len": 4_000}


def work(
    task: str,
    model: dict[str, Any] | str,
    data: dict[str, Any],
    samples: int = 8,
    **rest: Any,
) -> dict[str, Any]:
    """Return the work of a task: its model, its data, and the slots that differ."""
    train = {"micro_batch_size": samples, **rest.pop("train", {})}
    named = {"id": model} if isinstance(model, str) else model
    return {"task": task, "model": named, "data": data, "train": train, **rest}


DPO = work("dpo", LLAMA, {**PREFERENCES, "sequence_length": 128}, 4)
DEFAULT = {
    "dpo": DPO,
    "embedding": work("embedding", BERT, PAIRS),
    "vit": work("image-classification", "tiny-vit-cpu", IMAGES),
    "ctc": work("ctc", {"id": "tiny-wav2vec2-cpu", "overrides": WIDE}, SPEECH),
}
"""Fast configurations that differ most."""

MORE = {
    "dpo, LoRA": {**DPO, "adapter": LORA},
    "dpo, likelihood, accumulated": {
        **DPO,
        "task": {"use": "dpo", "nll_scale": 0.2},
        "train": {"micro_batch_size": 2, "gradient_accumulation": 2},
    },
    "translation": work("seq2seq-lm", T5, PAIRS),
    "resnet": work("image-classification", RESNET, IMAGES, 32),
    "resnet of two blocks": work("image-classification", "tiny-resnet-cpu", IMAGES, 32),
    "wav2vec 2.0 in pre-training": work("speech-pretraining", PRETRAINED, LONG_SPEECH),
    "whisper": work("speech-seq2seq", "tiny-whisper-cpu", SPEECH),
    "clip": work("image-text", "tiny-clip-cpu", {**CAPTIONS, "sequence_length": 64}),
    "smolvlm": work("image-text-to-text", "tiny-smolvlm-cpu", {**CAPTIONS, "sequence_length": 128}),
    "vit, checkpointed": work(
        "image-classification", "tiny-vit-cpu", IMAGES, train={"gradient_checkpointing": True}
    ),
    "masked": work(
        "masked-lm", BERT, {"use": "synthetic", "vocab_size": 1000, "sequence_length": 64}
    ),
}
"""Remaining configurations."""

UTTERANCES = {"ctc", "wav2vec 2.0 in pre-training"}
"""Configurations whose batches are as long as their longest utterance."""


@pytest.mark.parametrize("name", ["dpo", "vit"])
def test_a_simulated_peak_is_near_the_measured_one(name: str, tmp_path: Path) -> None:
    compare(DEFAULT[name], tmp_path, CLOSE)


@pytest.mark.release
@pytest.mark.parametrize("name", ["embedding", "ctc", *MORE])
def test_so_is_that_of_the_other_tasks(name: str, tmp_path: Path) -> None:
    compare({**DEFAULT, **MORE}[name], tmp_path, CLOSE)


def compare_counts(name: str, folder: Path) -> None:
    """Compare the processed count of a simulated micro-batch with a real one."""
    experiment = experiment_of({**DEFAULT, **MORE}[name])
    found = simulated(experiment)
    assert found.processed == first_batch(experiment, folder).tokens.processed


def test_what_a_step_processes_is_what_the_task_counts() -> None:
    counted = {}
    for name in ("dpo", "embedding", "vit"):
        experiment = experiment_of(DEFAULT[name])
        found = simulated(experiment)
        counted[name] = found.processed
    assert counted == {"dpo": 2 * 4 * 128, "embedding": 2 * 8 * 64, "vit": 8}


def test_whisper_processes_its_whole_length_whatever_is_said(tmp_path: Path) -> None:
    compare_counts("whisper", tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("name", sorted({*DEFAULT, *MORE} - {"whisper", *UTTERANCES}))
def test_all_other_works_process_what_is_simulated(name: str, tmp_path: Path) -> None:
    """Except works whose batches are as long as their longest utterance."""
    compare_counts(name, tmp_path)


def test_images_do_not_go_by_the_sequence_length() -> None:
    experiment = experiment_of(DEFAULT["vit"])
    twice = 2 * experiment.scenario.data.sequence_length
    first, second = simulated(experiment), simulated(experiment, sequence_length=twice)
    assert first.operations == second.operations
    assert first.parts == second.parts


def test_the_reference_is_held_beside_the_policy() -> None:
    plain = work("causal-lm", LLAMA, {"use": "synthetic", "sequence_length": 128})
    weights = []
    for settings in (plain, DPO, {**DPO, "adapter": LORA}):
        experiment = experiment_of(settings)
        found = simulated(experiment)
        weights.append(found.parts["weights"])
    assert weights[1] == pytest.approx(2 * weights[0], rel=0.01)
    assert weights[2] < 1.2 * weights[0]


@pytest.mark.parametrize("task", ["embedding", "dpo", "image-text-to-text"])
def test_a_batch_of_which_the_data_does_not_say_what_it_is_is_not_simulated(
    task: str, tmp_path: Path
) -> None:
    model = {"id": "tiny-llama-cpu", "overrides": shrunk("tiny-llama-cpu")}
    experiment = make_run(tmp_path, {"task": task, "model": model}).experiment
    shape = BatchShape.of(experiment.scenario)
    request = SimulationRequest(experiment=experiment, shape=shape, device="cpu")
    with pytest.raises(ScenarioError, match=f"what a batch of task '{task}' is"):
        SimulatedRun(request)
