"""Scenarios of images and speech at a tiny size, and a run with its model and its batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accel_bench import Run, load_base_model
from accel_bench.plugins.manager import load_class
from accel_bench.testing import make_run

SAMPLES = 32

WORKS: dict[str, dict[str, Any]] = {
    "vit": {
        "task": {"use": "image-classification"},
        "model": {"id": "tiny-vit-cpu"},
        "data": {"use": "images", "source": "glyphs", "image_size": 32, "samples": SAMPLES},
    },
    "resnet": {
        "task": {"use": "image-classification"},
        "model": {"id": "tiny-resnet-cpu"},
        "data": {"use": "images", "image_size": 32, "samples": SAMPLES},
    },
    "wav2vec2": {
        "task": {"use": "ctc"},
        "model": {"id": "tiny-wav2vec2-cpu"},
        "data": {"use": "speech", "max_audio_len": 8_000, "samples": SAMPLES},
    },
    "wav2vec2 without transcripts": {
        "task": {"use": "speech-pretraining"},
        "model": {"id": "tiny-wav2vec2-cpu", "overrides": {"mask_time_prob": 0.05}},
        "data": {
            "use": "speech",
            "min_audio_len": 4_000,
            "max_audio_len": 8_000,
            "samples": SAMPLES,
        },
    },
    "whisper": {
        "task": {"use": "speech-seq2seq"},
        "model": {"id": "tiny-whisper-cpu"},
        "data": {"use": "speech", "max_audio_len": 16_000, "samples": SAMPLES},
    },
    "clip": {
        "task": {"use": "image-text"},
        "model": {"id": "tiny-clip-cpu"},
        "data": {
            "use": "captions",
            "source": "glyphs",
            "image_size": 32,
            "samples": SAMPLES,
            "sequence_length": 64,
        },
    },
    "smolvlm": {
        "task": {"use": "image-text-to-text"},
        "model": {"id": "tiny-smolvlm-cpu"},
        "data": {
            "use": "captions",
            "source": "words",
            "image_size": 32,
            "samples": SAMPLES,
            "sequence_length": 64,
        },
    },
}
"""What is trained, by the model: as in a scenario file."""

TRAIN = {"micro_batch_size": 4, "learning_rate": 1e-3}


def built_run(folder: Path, work: str, train: dict[str, Any] | None = None, **data: Any) -> Run:
    """Return a run with its dataset, model, loss and batches, as core would make them.

    `train` and `data` are further keys of the scenario's sections.
    """
    written = WORKS[work]
    # torch's counter of FLOPs sees the products of eager attention on every device.
    model = {"attention": "eager", **written["model"]}
    sections = {"train": {**TRAIN, **(train or {})}, "data": {**written["data"], **data}}
    scenario = {**written, "model": model, **sections}
    run = make_run(folder, scenario)
    use = run.scenario.data
    kind = load_class(use.use, allow_torch=True)
    plugin = kind(kind.Options.model_validate_json(json.dumps(use.options)), use.use)
    run.dataset = plugin.load_data(run)
    run.model = run.unwrapped_model = load_base_model(run)
    run.task.adjust_model(run.model)
    run.loss = run.task.build_loss(run)
    run.batches = plugin.build_batches(run)
    if run.scenario.evaluates:
        run.evaluation_batches = plugin.build_evaluation_batches(run)
    return run
