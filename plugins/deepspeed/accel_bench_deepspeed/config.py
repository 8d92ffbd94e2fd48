"""DeepSpeed's configuration, merged from the user's file, the options and the scenario."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel_bench import Scenario
from accel_bench.errors import ScenarioError

DEFAULT_STAGE = 2

AUTO = "auto"
"""Value of keys that the HF Trainer fills in, in configuration files written for Trainer."""

UNUSED: Mapping[str, str] = {
    "scheduler": "the learning rate is constant",
    "fp16": "its gradient scaler is not that of other stacks; use train.precision: bf16-autocast",
    "amp": "use train.precision: bf16-autocast",
    "sparse_attention": "use the plugin attention",
    "activation_checkpointing": "use train.gradient_checkpointing",
    "curriculum_learning": "the data is that of the scenario",
    "data_efficiency": "the data is that of the scenario",
    "compression_training": "it trains another model",
    "progressive_layer_drop": "it trains another model",
    "eigenvalue": "it trains another model",
    "pipeline": "pipelines are not offered",
    "elasticity": "the batch is that of the scenario",
    "autotuning": "it would measure something else",
    "hybrid_engine": "it is for inference",
    "tensor_parallel": "use the plugin mesh",
    "sequence_parallel_size": "sequences are not divided",
    "zenflow": "it updates with old gradients",
}
"""Keys of a configuration file that accel-bench rejects, each with the alternative."""


def read_config(path: str) -> dict[str, Any]:
    """Return the mapping in a JSON configuration file; `~` in `path` is expanded.

    Raises ScenarioError if the file cannot be read or holds no mapping.
    """
    file = Path(os.path.expanduser(path))
    try:
        content = json.loads(file.read_text())
    except OSError as error:
        raise ScenarioError(f"deepspeed: config: {path}: {error.strerror}") from error
    except ValueError as error:
        raise ScenarioError(f"deepspeed: config: {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ScenarioError(f"deepspeed: config: {path} holds no mapping")
    return content


def settings(path: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's settings: a configuration file, if any, updated by the plugin's options.

    `path` is the file's path; `options` are the plugin's options by name. The stage of ZeRO is
    always set.
    """
    content = read_config(path) if path else {}
    zero = content.get("zero_optimization", {})
    zero = {**zero} if isinstance(zero, dict) else {}
    if options["stage"] is not None:
        zero["stage"] = options["stage"]
    if not isinstance(zero.get("stage"), int):
        zero["stage"] = DEFAULT_STAGE
    for option, key in (("offload_optimizer",) * 2, ("offload_parameters", "offload_param")):
        if options[option]:
            given = zero.get(key)
            zero[key] = {**(given if isinstance(given, dict) else {}), "device": "cpu"}
    return {**content, "zero_optimization": zero}


def stage_of(settings: Mapping[str, Any]) -> int:
    """Return the stage of ZeRO in DeepSpeed's settings."""
    return int(settings["zero_optimization"]["stage"])


def offloaded(settings: Mapping[str, Any], what: str) -> bool:
    """Return whether DeepSpeed's settings keep optimizer state or weights on the host.

    `what` is `optimizer` for the optimizer state, or `param` for the weights.
    """
    return _device(settings["zero_optimization"], what) not in (None, "none")


def merged(settings: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Return DeepSpeed's full configuration: `settings`, overridden by the scenario's values."""
    low = scenario.train.keeps_master_weights
    autocast = scenario.train.autocast_dtype
    return {
        "steps_per_print": 2**31 - 1,
        # Torch's optimizer works on the host: DeepSpeed's own is compiled from C++ where it runs.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **{key: value for key, value in settings.items() if key not in owned(scenario)},
        **{key: value for key, value in owned(scenario).items() if value is not None},
        "bf16": {"enabled": low},
        **({"torch_autocast": {"enabled": True, "dtype": autocast}} if autocast else {}),
    }


def owned(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario's values under DeepSpeed's keys; None for keys that stay unset."""
    train = scenario.train
    return {
        "train_batch_size": train.global_batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": train.gradient_accumulation,
        "gradient_clipping": train.max_grad_norm or 0.0,
        "optimizer": None,
        "bf16": None,
        "torch_autocast": None,
    }


def contradictions(path: str | None, scenario: Scenario, options: Mapping[str, Any]) -> None:
    """Raise ScenarioError if the configuration file contradicts the scenario or the options.

    The error names each such key. `path` is the file's path, or None for no file.
    """
    if path is None:
        return
    if problems := list(_contradictions(read_config(path), scenario, options)):
        raise ScenarioError(f"deepspeed: config: {path}: {'; '.join(problems)}")


def _contradictions(
    given: Mapping[str, Any], scenario: Scenario, options: Mapping[str, Any]
) -> Iterator[str]:
    for key, value in owned(scenario).items():
        if value is not None and given.get(key, AUTO) not in (AUTO, value):
            yield f"{key} is {given[key]!r}, and the scenario's is {value!r}; leave it out"
    yield from _precision(given, scenario)
    yield from _optimizer(given.get("optimizer"), scenario)
    for key, instead in UNUSED.items():
        if _is_on(given.get(key)):
            yield f"{key} is {json.dumps(given[key])}: {instead}"
    yield from _zero(given.get("zero_optimization", {}), options)


def _precision(given: Mapping[str, Any], scenario: Scenario) -> Iterator[str]:
    """Yield a sentence for each precision in a configuration file that contradicts the scenario.

    `given` is the file's content.
    """
    precision = scenario.train.precision
    for key, means in (("bf16", "bf16-master-weights"), ("torch_autocast", "bf16-autocast")):
        section = given.get(key)
        enabled = section.get("enabled", AUTO) if isinstance(section, dict) else AUTO
        if enabled != AUTO and bool(enabled) != (precision == means):
            yield (
                f"{key}.enabled is {json.dumps(enabled)}, and train.precision is {precision}; set "
                f"train.precision: {means if enabled else 'as-is'}, or leave it out"
            )


def _optimizer(given: Any, scenario: Scenario) -> Iterator[str]:
    """Yield a sentence for the optimizer's type, and each argument, if it contradicts the scenario.

    `given` is the section `optimizer` of a configuration file, if it has one.
    """
    if not isinstance(given, dict):
        return
    kind, use = given.get("type", AUTO), scenario.optimizer.use
    if AUTO != kind and str(kind).lower() != use:
        yield f"optimizer.type is {kind!r}, and the scenario's optimizer is {use!r}; leave it out"
    known = {"lr": scenario.train.learning_rate, **scenario.optimizer.options}
    for key, value in (given.get("params") or {}).items():
        if value != AUTO and not _same(value, known.get(key)):
            shown = json.dumps(known.get(key))
            yield (
                f"optimizer.params.{key} is {value!r}, and the scenario's is {shown}; leave it out"
            )


def _zero(given: Any, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each setting of ZeRO that contradicts the options or is unsupported.

    `given` is the section `zero_optimization` of a configuration file, and `options` are the
    plugin's options.
    """
    if not isinstance(given, dict):
        return
    stage = given.get("stage", AUTO)
    if options["stage"] is not None and stage not in (AUTO, options["stage"]):
        yield f"zero_optimization.stage is {stage!r}, and the option stage is {options['stage']}"
    for what, option in (("optimizer", "offload_optimizer"), ("param", "offload_parameters")):
        device = _device(given, what)
        if device == "nvme":
            yield f"zero_optimization.offload_{what}.device is 'nvme': use 'cpu'"
        elif device == "none" and options[option]:
            yield f"zero_optimization.offload_{what}.device is 'none', and {option} is true"


def _device(zero: Mapping[str, Any], what: str) -> Any:
    section = zero.get(f"offload_{what}")
    return section.get("device", "none") if isinstance(section, dict) else None


def _is_on(value: Any) -> bool:
    return bool(value.get("enabled", True) if isinstance(value, dict) else value)


def _same(value: Any, other: Any) -> bool:
    numbers = (int, float)
    if isinstance(value, numbers) and isinstance(other, numbers):
        return math.isclose(value, other)
    return bool(value == (list(other) if isinstance(other, tuple) else other))
