"""Weights that vLLM loads: those of every other stack."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import transformers

from accel_bench import Run
from accel_bench.modeling.loading import load_base_model, pretrained_source

FINGERPRINT = "weights_fingerprint"
"""File beside random weights that says what they are."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What vLLM loads: a folder, or a model of the hub."""

    path: str
    revision: str | None = None


def checkpoint_of(run: Run) -> Checkpoint:
    """Return where the scenario's weights are; those that are in no file are written to one.

    Sets `run.weights_fingerprint` for these.
    """
    use = run.scenario.model
    if use.weights != "random" and not use.overrides:
        source = pretrained_source(use, run.trust_remote_code)
        return Checkpoint(source["pretrained_model_name_or_path"], source.get("revision"))
    key = {
        "model": use.model_dump(mode="json"),
        "seed": run.scenario.train.seed,
        "device": run.device.type,
        "versions": [str(torch.__version__), transformers.__version__],
    }
    folder = run.cache("checkpoints", key, lambda empty: _write_weights(run, empty))
    run.weights_fingerprint = (folder / FINGERPRINT).read_text()
    return Checkpoint(str(folder))


def _write_weights(run: Run, folder: Path) -> None:
    model = load_base_model(run)
    model.save_pretrained(folder)
    (folder / FINGERPRINT).write_text(run.weights_fingerprint)
