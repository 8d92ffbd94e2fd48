"""Catalog of models with their published figures, and look-up of a model by its id."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pydantic import Field

from accel_bench.catalog.hub import look_up, looked_up
from accel_bench.documents.base import Frozen, JsonValue, PositiveInt
from accel_bench.documents.load import ParsedFile, load_file
from accel_bench.documents.presets import find_presets, preset_path
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.uses import ModelUse, slot_defaults

CONFIG_FILE = "config.json"
"""File of a model directory that holds its architecture, in transformers' layout."""

Family: TypeAlias = Literal[
    "text-generation", "text-encoder", "text-to-text", "vision", "audio", "multimodal"
]
"""Family of models; `run --family` runs all models of a family."""

NEARLY = 0.9
"""Similarity from which an override without a published key counts as a misspelling."""


class ModelCard(Frozen):
    """A model of the catalog: `sample_configurations/models/<name>.yaml`."""

    description: str = Field(min_length=1)
    """Description of the model, in a sentence."""

    architecture: str = Field(min_length=1)
    """Class of the model in transformers, such as `LlamaForCausalLM`."""

    family: Family = "text-generation"
    """Family of the model."""

    task: str = Field(default_factory=lambda: slot_defaults().slots["task"], min_length=1)
    """Task of the model's training by its authors: a plugin of the slot `task`."""

    model_class: str = Field("AutoModelForCausalLM", min_length=1)
    """Class of transformers that creates the model from its configuration."""

    model_type: str = Field(min_length=1)
    """Name of the configuration class in transformers, such as `llama`."""

    parameters: PositiveInt
    """Published number of distinct trainable parameters; tied ones count once."""

    source: str = Field(min_length=1)
    """Address or title of the publication of the figures."""

    config: dict[str, JsonValue] = Field(min_length=1)
    """Keyword arguments of the configuration class: the published architecture."""

    same_as: str = ""
    """Name of the card whose values this card inherits: for an instruction-tuned model its base
    model."""


def read_card(name: str) -> ModelCard:
    """Return the catalog's model called `name`. Raises ScenarioError for an unknown name (with the
    nearest one), or an unusable file (with file, line and key)."""
    return _read(preset_path("models", name))


def list_cards() -> dict[str, ModelCard]:
    """Return all models of the catalog by name. Raises ScenarioError for the first wrong file."""
    return {name: _read(path) for name, path in sorted(find_presets("models").items())}


def cards_of_family(family: str) -> dict[str, ModelCard]:
    """Return the models of a family by name. Raises ScenarioError if the family has no models."""
    cards = {name: card for name, card in list_cards().items() if card.family == family}
    if not cards:
        hint = did_you_mean(family, get_args(Family))
        raise ScenarioError(f"--family {family}: no model of the catalog is one{hint}")
    return cards


def model_problems(model: ModelUse) -> Iterator[str]:
    """Yield problems of a model's id, weights and overrides, found in files or on the hub.

    A hub id is requested from the hub if there is a network.
    """
    catalog, directory = find_presets("models"), model_directory(model)
    if model.id in catalog:
        yield from _catalog_problems(model)
    elif directory is not None:
        yield from _directory_problems(directory, model)
    elif model.id.startswith((".", "/", "~")):
        yield f"model.id {model.id!r}: there is no such directory"
    elif "/" not in model.id:
        yield (
            f"no model of the catalog is called {model.id!r}{did_you_mean(model.id, catalog)} "
            "(a hub id has the form 'org/name')"
        )
    elif problem := look_up(model).problem:
        yield f"model.id {model.id!r}: {problem}"


def unquantizable(model: ModelUse, plugin: str) -> list[str]:
    """Return the reason why `plugin` cannot quantize a model, in a list: the model is quantized
    already. The list is empty if the model's files state no quantization. The linear layers in its
    blocks are not checked."""
    directory = model_directory(model)
    if directory is None or "quantization_config" not in read_config(directory):
        return []
    return [
        f"model.id {model.id!r} is quantized already, and {plugin} quantizes models in full "
        "precision; name the model that it was made from"
    ]


def model_directory(model: ModelUse) -> Path | None:
    """Return the local directory that the model's id names, or None for a catalog name or hub id.

    The catalog comes first: write `./name` for a directory with the name of a catalog model.
    """
    if model.id in find_presets("models"):
        return None
    path = Path(os.path.expanduser(model.id))
    return path if path.is_dir() else None


def architecture_of(model: ModelUse) -> str | None:
    """Return the model's architecture, such as `LlamaForCausalLM`, or None if it is not stated.

    It is read from the catalog or from `config.json` of a local directory. For a hub id it is what
    `model_problems` got from the hub before. Torch is not imported. Raises ScenarioError for a
    broken file.
    """
    if model.id in find_presets("models"):
        return read_card(model.id).architecture
    directory = model_directory(model)
    if directory is None:
        answered = looked_up(model)
        return answered.architecture if answered else None
    names = read_config(directory).get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None


def model_type_of(model: ModelUse) -> str | None:
    """Return the name of the model's configuration class, such as `llama`, or None for a hub id."""
    if model.id in find_presets("models"):
        return read_card(model.id).model_type
    kind = (model_config(model) or {}).get("model_type")
    return kind if isinstance(kind, str) else None


def family_of(model: ModelUse) -> Family | None:
    """Return the family of a catalog model, or None for any other model."""
    return read_card(model.id).family if model.id in find_presets("models") else None


def model_config(model: ModelUse) -> dict[str, JsonValue] | None:
    """Return the configuration of a model with its overrides applied, or None for a hub id. It
    comes from the catalog or a local directory; torch is not imported. Raises ScenarioError for a
    broken file."""
    if model.id in find_presets("models"):
        return {**read_card(model.id).config, **model.overrides}
    directory = model_directory(model)
    return None if directory is None else {**read_config(directory), **model.overrides}


def read_config(directory: Path) -> dict[str, JsonValue]:
    """Return the content of a model directory's `config.json`. Raises ScenarioError if the file is
    missing or broken."""
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScenarioError(
            f"model.id {str(directory)!r}: the directory's {CONFIG_FILE} cannot be read: {error}"
        ) from error
    if not isinstance(config, dict):
        raise ScenarioError(f"{path}: expected a JSON object")
    return config


def _read(path: Path) -> ModelCard:
    document = load_file(path)
    return validate(ModelCard, _completed(document), document.where, ScenarioError)


def _completed(document: ParsedFile) -> dict[str, JsonValue]:
    """Return a card file's values; missing ones are those of the card that `same_as` names."""
    own = document.data
    name = own.get("same_as")
    if not isinstance(name, str) or not name:
        return own
    other = load_file(preset_path("models", name)).data
    if other.get("same_as"):
        place = document.where(("same_as",))
        raise ScenarioError(f"{place}: {name} is itself the same as {other['same_as']}; name that")
    config = {**_mapping(other.get("config")), **_mapping(own.get("config"))}
    return {**other, **own, "config": config}


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _catalog_problems(model: ModelUse) -> Iterator[str]:
    if model.weights == "pretrained":
        yield (
            f"model.id {model.id!r} is a name of the catalog, which holds no weights; for "
            "`weights: pretrained` name a local directory or a hub id such as 'org/name'"
        )
    published = read_card(model.id).config
    for key in model.overrides:
        near = get_close_matches(key, published, n=1, cutoff=NEARLY)
        if key not in published and near:
            yield f"model.overrides.{key}: {model.id} has no such key; did you mean {near[0]}?"


def _directory_problems(directory: Path, model: ModelUse) -> Iterator[str]:
    try:
        read_config(directory)
    except ScenarioError as error:
        yield str(error)
    if model.weights == "pretrained" and not any(directory.glob("*.safetensors")):
        yield (
            f"model.id {model.id!r} holds no *.safetensors file, and other formats are not read; "
            "convert the weights with `save_pretrained`"
        )
