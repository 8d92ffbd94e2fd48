"""The plugin `huggingface` for a scenario's `model`, which transformers loads or initializes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from accel_bench import (
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    Scenario,
    hookimpl,
    model_problems,
)
from accel_bench.errors import ScenarioError
from accel_bench.modeling.model_files import digest_of_model

OLDEST_FOR_FLASH = (8, 0)
"""Lowest compute capability for which flash-attn 2 has kernels."""


class HuggingFace(Plugin[Options]):
    """Loads `model.id`: a name of the catalog, a local directory, or a hub id.

    The configuration stays as published, its dropout included, except for `model.overrides` and the
    key-value cache, which is off. Training does not use this cache, and with it flattened inputs
    would silently give a wrong loss.
    """

    def bytes_per_parameter(self, experiment: Experiment) -> dict[str, float]:
        """Return the bytes of a weight in `model.dtype`, under the key `weights`."""
        return {"weights": experiment.scenario.model.bytes_per_value}

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return the SHA-256 of the files in the model's local directory; None without one."""
        return digest_of_model(experiment.scenario.model)

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> list[str]:
        """Return reasons why this machine cannot run the model's attention.

        Raises ScenarioError if the model does not exist or cannot be used, as far as files and
        metadata show.
        """
        scenario = experiment.scenario
        for problem in model_problems(scenario.model):
            raise ScenarioError(problem)
        return list(_attention_reasons(scenario, machine))

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import the modules that loading needs, so that core counts their memory as imports."""
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


def _attention_reasons(scenario: Scenario, machine: Machine) -> Iterator[str]:
    attention, device = scenario.model.attention, scenario.resources.device
    if device == "cpu" and attention in ("flash_attention_2", "flex_attention"):
        yield f"model.attention {attention!r} cannot train on a CPU; use 'sdpa' or 'eager'"
        return
    if attention != "flash_attention_2":
        return
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
