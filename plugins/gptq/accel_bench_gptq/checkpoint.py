"""Quantization settings of a checkpoint, read from its `config.json` without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from accel_bench import Scenario, model_directory, read_config

if TYPE_CHECKING:
    from accel_bench_gptq import AutoGPTQOptions

QUANTIZATION = "quantization_config"
"""Key of the quantization settings in `config.json`."""


TRAINABLE_BITS = frozenset({2, 4, 8})
"""Bits per weight that every training kernel supports."""


class GPTQSettings(BaseModel):
    """Settings of quantization, by their names in GPTQ checkpoints."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    bits: int
    """Bits per weight."""

    group_size: int
    """Number of consecutive inputs that share a scale; -1 means all inputs."""

    desc_act: bool
    """True if inputs are ordered by activation before they are grouped."""

    sym: bool
    """True if a group's range is centred on zero."""

    @classmethod
    def of_options(cls, options: AutoGPTQOptions) -> GPTQSettings:
        """Return the settings that the plugin's options describe."""
        return cls(**{name: getattr(options, name) for name in cls.model_fields})

    @classmethod
    def of_checkpoint(cls, quantization: Mapping[str, Any]) -> GPTQSettings:
        """Return a checkpoint's settings, with the defaults of its format.

        `quantization` is the quantization section of its `config.json`. Raises ValidationError if a
        setting is missing or of the wrong type.
        """
        said = {"desc_act": False, "sym": True, **quantization}
        return cls.model_validate({name: said.get(name) for name in cls.model_fields})


def local_quantization(scenario: Scenario) -> Mapping[str, Any] | None:
    """Return a local model's quantization settings, empty if unquantized; None for a hub id.

    Raises ScenarioError if its `config.json` is unreadable.
    """
    directory = model_directory(scenario.model)
    if directory is None:
        return None
    section = read_config(directory).get(QUANTIZATION)
    return section if isinstance(section, dict) else {}


def checkpoint_problem(
    model_id: str, quantization: Mapping[str, Any], options: AutoGPTQOptions
) -> str | None:
    """Return the reason why the options do not fit a checkpoint, or None if they do.

    `quantization` is the quantization section of the checkpoint's `config.json`.
    """
    method = quantization.get("quant_method")
    if method is None:
        return (
            f"from_quantized: the checkpoint {model_id!r} is not quantized; leave from_quantized "
            "out to have it quantized now, or name a GPTQ checkpoint in model.id"
        )
    if method != "gptq":
        return f"from_quantized: the checkpoint {model_id!r} is of the kind {method}, not of gptq"
    try:
        stored = GPTQSettings.of_checkpoint(quantization)
    except ValidationError as error:
        wrong = ", ".join(str(each["loc"][0]) for each in error.errors())
        return f"the checkpoint {model_id!r} does not say, or not rightly: {wrong}"
    for name in sorted(options.model_fields_set & set(GPTQSettings.model_fields)):
        asked, there = getattr(options, name), getattr(stored, name)
        if asked != there:
            return (
                f"{name}: the checkpoint {model_id!r} has {name} {there}, asked is {asked}; leave "
                f"{name} out to take what it has"
            )
    if stored.bits not in TRAINABLE_BITS:
        return f"bits: the checkpoint {model_id!r} has {stored.bits} bits, which no kernel trains"
    return None


def model_problem(scenario: Scenario, options: AutoGPTQOptions) -> str | None:
    """Return the reason why the options contradict the model's local files; None if they do not."""
    model, quantization = scenario.model, local_quantization(scenario)
    if not options.from_quantized:
        if not quantization:
            return None
        return (
            f"model.id {model.id!r} is quantized already ({quantization.get('quant_method')}); "
            "set from_quantized: true for a GPTQ checkpoint, or name the original model"
        )
    if model.weights != "pretrained":
        return "from_quantized needs a checkpoint's own weights; set model.weights: pretrained"
    if model.overrides:
        return "from_quantized takes a checkpoint as it is; leave model.overrides out"
    return None if quantization is None else checkpoint_problem(model.id, quantization, options)


def is_moving(scenario: Scenario) -> bool:
    """Return whether the hub may change the model's weights, since no revision is set."""
    model = scenario.model
    of_hub = "/" in model.id and model_directory(model) is None
    return of_hub and model.weights == "pretrained" and model.revision is None
