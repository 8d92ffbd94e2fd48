"""Calibration: GPTQ on samples of the scenario's data, whose result is cached."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench import Run, load_base_model
from accel_bench.errors import ScenarioError
from accel_bench_gptq.checkpoint import GPTQSettings

if TYPE_CHECKING:
    from accel_bench_gptq import AutoGPTQOptions

RECORD = "calibration.json"
"""Name of the JSON file with a checkpoint's quantization time in seconds and source weights."""

USUAL_SHORTEST = 10
"""Number of tokens below which GPTQModel skips a sample by default."""


def calibrate(run: Run, options: AutoGPTQOptions) -> tuple[Path, float]:
    """Return the cache folder of the calibrated model, and the seconds that its quantization took.

    A model that is not in the cache is quantized now. The seconds include loading and saving. Sets
    `run.weights_fingerprint`. Raises ScenarioError if the data has too few samples.
    """
    samples = _samples(run, options.calibration_samples)
    settings = GPTQSettings.of_options(options)

    def fill(folder: Path) -> None:
        started = time.perf_counter()
        _quantize(run, settings, samples, folder)
        record = {
            "seconds": time.perf_counter() - started,
            "weights_fingerprint": run.weights_fingerprint,
        }
        (folder / RECORD).write_text(json.dumps(record), encoding="utf8")

    folder = run.cache("gptq", _key(run, settings, len(samples)), fill)
    record = json.loads((folder / RECORD).read_text(encoding="utf8"))
    run.weights_fingerprint = record["weights_fingerprint"]
    return folder, record["seconds"]


def _samples(run: Run, count: int) -> list[dict[str, list[int]]]:
    """Return the data's first `count` samples in GPTQModel's format.

    Raises ScenarioError if the data has fewer samples.
    """
    dataset = run.dataset
    usable = dataset.training_samples(run) if hasattr(dataset, "training_samples") else ()
    if len(usable) < count:
        there = len(usable) or "none that can be looked up"
        raise ScenarioError(
            f"calibration_samples: {count} are asked for, the data of {run.scenario.data.use!r} "
            f"has {there}"
        )
    rows = [[int(token) for token in dataset.sample(index)] for index in usable[:count]]
    return [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]


def _key(run: Run, settings: GPTQSettings, samples: int) -> dict[str, Any]:
    """Return the cache key of a calibrated checkpoint: everything that determines its content.

    `samples` is the number of calibration samples.
    """
    scenario = run.scenario
    environment: Any = run.experiment.identity.get("environment") or {}
    return {
        "model": scenario.model.model_dump(mode="json"),
        "files": environment.get("fingerprints", {}).get(scenario.model.use),
        "seed": scenario.train.seed if scenario.model.weights == "random" else None,
        "data": [run.dataset.fingerprint, scenario.data.sequence_length, samples],
        "held_out": [scenario.data.held_out, scenario.data.seed] if scenario.data.held_out else 0,
        "settings": settings.model_dump(mode="json"),
        "device": run.device.type,
        "versions": {
            name: metadata.version(name) for name in ("gptqmodel", "torch", "transformers")
        },
    }


def _quantize(run: Run, settings: GPTQSettings, samples: list[Any], folder: Path) -> None:
    """Quantize the base model with these samples, and save it in `folder`.

    GPTQModel only reads checkpoints, so the base weights are saved first.
    """
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

    work = folder.resolve() / "work"
    load_base_model(run).save_pretrained(work)
    _save_stand_in_tokenizer(work)
    config = QuantizeConfig(
        **settings.model_dump(),
        # GPTQModel orders groups by activation unless told otherwise, and there have to be some.
        act_group_aware=settings.group_size > 0 and not settings.desc_act,
        device=str(run.device),
        offload_to_disk_path=str(work / "offload"),
    )
    shortest = min(len(sample["input_ids"]) for sample in samples)
    with _inside(work):  # GPTQModel leaves a folder of logs where it is called.
        model = GPTQModel.load(
            str(work), config, trust_remote_code=run.trust_remote_code, backend=BACKEND.GPTQ_TORCH
        )
        model.quantize(samples, calibration_data_min_length=min(shortest, USUAL_SHORTEST))
        model.save(str(work.parent))
    shutil.rmtree(work)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Change the working directory to a folder within the block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _save_stand_in_tokenizer(folder: Path) -> None:
    """Save an unused tokenizer, which GPTQModel requires although samples are token ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>").save_pretrained(folder)
