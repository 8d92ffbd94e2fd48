"""The slot plugin `huggingface`: causal language models of transformers, random or pretrained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accel_bench import (
    Experiment,
    Machine,
    ModelUse,
    Options,
    Plugin,
    Run,
    Scenario,
    catalog_names,
    hookimpl,
    model_directory,
    read_card,
    read_config,
)
from accel_bench.errors import ScenarioError, did_you_mean

SMALL_BYTES = 1_000_000
"""A file below this size goes into a fingerprint with its content, a larger one with its size."""

OLDEST_FOR_FLASH = (8, 0)
"""Compute capability from which flash-attn 2 has kernels."""

NEARLY = 0.9
"""Similarity from which an override that no published key has is taken for a slip of the pen."""


class HuggingFace(Plugin[Options]):
    """Loads `model.id`: a name of the catalog, a local directory, or a hub id.

    The configuration stays as published, its dropout included, but for `model.overrides` and for
    the key-value cache, which is off: training has no use for it, and flattened inputs give a
    wrong loss with it, without a word.
    """

    def fingerprint(self, experiment: Experiment) -> str | None:
        """SHA-256 over the files of the model's local directory; None where it has none."""
        model = experiment.scenario.model
        directory = model_directory(model)
        return None if directory is None else _digest_files(directory, model.weights)

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> list[str]:
        """Say why this model cannot be trained here, as far as files and metadata tell.

        Raises ScenarioError for a model that is nowhere: that is for the user to mend.
        """
        scenario = experiment.scenario
        for problem in (*_source_problems(scenario.model), *_override_problems(scenario.model)):
            raise ScenarioError(problem)
        return list(_attention_reasons(scenario, machine))

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import what loading needs, so that core can read the memory level in between."""
        from accel_bench.modeling import loading

        loading.import_model_class(run.scenario.model)

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the model on the run's device, in train mode."""
        from accel_bench.modeling import loading

        model = loading.load_base_model(run)
        loaded = {"class": type(model).__name__, "parameters": loading.count_parameters(model)}

        def evidence() -> dict[str, Any]:
            trained = run.model if run.unwrapped_model is None else run.unwrapped_model
            trainable = loading.count_parameters(trained, trainable=True)
            return {**loaded, "trainable_parameters": trainable}

        run.on_evidence(evidence)
        return model


def _source_problems(model: ModelUse) -> Iterator[str]:
    """What is wrong with the id, the weights and the files of a directory."""
    catalog = catalog_names()
    directory = model_directory(model)
    if model.id in catalog:
        if model.weights == "pretrained":
            yield (
                f"model.id {model.id!r} is a name of the catalog, which holds no weights; for "
                "`weights: pretrained` name a local directory or a hub id such as 'org/name'"
            )
    elif directory is not None:
        yield from _directory_problems(directory, model)
    elif model.id.startswith((".", "/", "~")):
        yield f"model.id {model.id!r}: there is no such directory"
    elif "/" not in model.id:
        yield (
            f"no model of the catalog is called {model.id!r}{did_you_mean(model.id, catalog)} "
            "(a hub id has the form 'org/name')"
        )


def _override_problems(model: ModelUse) -> Iterator[str]:
    """Overrides that are nearly, and not quite, a published key of the catalog's model."""
    published = read_card(model.id).config if model.id in catalog_names() else {}
    for key in model.overrides:
        near = get_close_matches(key, published, n=1, cutoff=NEARLY)
        if key not in published and near:
            yield f"model.overrides.{key}: {model.id} has no such key; did you mean {near[0]}?"


def _directory_problems(directory: Path, model: ModelUse) -> Iterator[str]:
    """What is wrong with a directory: no configuration, or no weights in a safe format."""
    try:
        read_config(directory)
    except ScenarioError as error:
        yield str(error)
    if model.weights == "pretrained" and not any(directory.glob("*.safetensors")):
        yield (
            f"model.id {model.id!r} holds no *.safetensors file, and other formats are not read; "
            "convert the weights with `save_pretrained`"
        )


def _attention_reasons(scenario: Scenario, machine: Machine) -> Iterator[str]:
    """Reasons that lie in the attention implementation."""
    asked, device = scenario.model.attention, scenario.resources.device
    if device == "cpu" and asked in ("flash_attention_2", "flex_attention"):
        yield f"model.attention {asked!r} cannot train on a CPU; use 'sdpa' or 'eager'"
    elif asked == "flash_attention_2":
        yield from _flash_attention_reasons(scenario, machine)


def _flash_attention_reasons(scenario: Scenario, machine: Machine) -> Iterator[str]:
    """What flash-attn needs: itself, a dtype of 16 bits, and a GPU that is new enough."""
    if find_spec("flash_attn") is None:
        yield "model.attention 'flash_attention_2' needs the package flash-attn; use 'sdpa'"
    if scenario.train.precision == "as-is" and scenario.model.dtype == "float32":
        yield (
            "model.attention 'flash_attention_2' computes in float16 and bfloat16, and attention "
            "is in float32; set model.dtype, or train.precision"
        )
    for gpu in machine.gpus[: scenario.resources.devices]:
        if gpu.compute_capability < OLDEST_FOR_FLASH:
            yield (
                f"model.attention 'flash_attention_2' needs compute capability 8.0, {gpu.name} has "
                f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}; use 'sdpa'"
            )


def _digest_files(directory: Path, weights: str) -> str:
    """Digest a directory's configuration and code, and its weights where they are used."""
    patterns = ["config.json", "*.py", *(["*.safetensors*"] if weights == "pretrained" else [])]
    found = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in directory.glob(pattern)):
        size = path.stat().st_size
        content = hashlib.sha256(path.read_bytes()).hexdigest() if size < SMALL_BYTES else ""
        found.update(f"{path.name}\0{size}\0{content}\n".encode())
    return found.hexdigest()
