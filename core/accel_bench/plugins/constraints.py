"""Checks that an experiment and a machine meet the constraints that plugins declare."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from accel_bench.catalog.models import architecture_of, family_of, model_directory, read_config
from accel_bench.documents.program import python_command
from accel_bench.errors import PluginError
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Machine
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, task_of, wrong_return_type
from accel_bench.plugins.doors import OWN_DISTRIBUTION
from accel_bench.plugins.registry import find, missing_extra, unmet_requirement
from accel_bench.plugins.shipped import plugin_meant_by
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.settings import MASTER_WEIGHTS
from accel_bench.scenario.uses import NO_PLUGIN

PRECISION_OF = {"bfloat16": "bf16-autocast", "float16": "fp16-autocast"}
"""Values of `train.precision` by the dtype that they compute in."""

NAMED = 6
"""Largest number of architectures that a reason names in full."""

NAMED_OF_MANY = 3

MICRO_BATCH = frozenset(
    {
        "evaluate.micro_batch_size",
        "train.global_batch_size",
        "train.gradient_accumulation",
        "train.micro_batch_size",
    }
)
"""Settings that determine the micro-batch's size."""


ASK_SECONDS = 120.0
"""Seconds within which an interpreter must have imported torch."""

# Torch's backend `fake` sends nothing.
ASK_BACKENDS = """
import json
from torch import distributed
known = distributed.Backend.backend_capability if distributed.is_available() else {}
found = {one for one in known if one != "fake" and distributed.is_backend_available(one)}
print(json.dumps({one: known[one] for one in sorted(found)}))
"""
"""Program that prints the backends that torch was built with, or that were registered with it."""


def unmet_constraints(
    experiment: Experiment, active: ActivePlugins, machine: Machine, python: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return reasons, from declarations and `check_scenario`, why an experiment cannot run here.

    `python` is the command of the interpreter that runs the ranks; empty for this one.
    """
    scenario = experiment.scenario
    known = {"experiment": experiment, "machine": machine, "task": task_of(active)}
    # First of all, since a model that is looked up has an architecture from then on.
    asked = [*active.call_lists("check_scenario", **known)]
    elsewhere = any(plugin.instance.checks_nodes for plugin in active.plugins)
    reasons = [] if elsewhere else [*_devices(scenario, machine), *_backend(scenario, python)]
    reasons += [*_resources(scenario), *_working_copies(scenario, active)]
    reasons += _missing_reader(scenario)
    reasons += _other_training(experiment, active)
    architecture = architecture_of(scenario.model)
    for plugin in active.plugins:
        declared = _declared(scenario, plugin, machine, architecture)
        unmet = [*_requirements(plugin), *declared]
        reasons += [f"{plugin.name}: {reason}" for reason in unmet]
    for plugin, items in asked:
        for reason in items:
            if not isinstance(reason, str):
                raise wrong_return_type(plugin, "check_scenario", "a list of texts", reason)
            reasons.append(reason if plugin.name in reason else f"{plugin.name}: {reason}")
    return tuple(dict.fromkeys(reasons))


def _other_training(experiment: Experiment, active: ActivePlugins) -> Iterator[str]:
    """Yield a reason if the stack changes the batch size and the task's loss depends on it."""
    task, changed = task_of(active), sorted({*experiment.stack.settings} & MICRO_BATCH)
    if task is not None and task.batch_dependent and changed:
        yield (
            f"task {experiment.scenario.task.use!r}: the loss of a sample depends on its "
            f"micro-batch, so that {', '.join(changed)} of one stack is another training; "
            "set it for all stacks, or sweep it"
        )


def refuse_architecture(active: ActivePlugins, architecture: str) -> None:
    """Raise PluginError that names every plugin that does not support the model's architecture.

    The worker calls it when the model's configuration is read, since a plan does not know the
    architecture of a hub's model.
    """
    reasons = [
        f"{plugin.name}: {reason}"
        for plugin in active.plugins
        for reason in _wrong_architecture(plugin, architecture)
    ]
    if reasons:
        raise PluginError("; ".join(reasons))


def _wrong_architecture(plugin: ActivePlugin, architecture: str | None) -> Iterable[str]:
    known = plugin.instance.restricted_model_archs
    if known is not None and architecture is not None and architecture not in known:
        yield f"does not support {architecture}; it supports {_some(plugin.name, sorted(known))}"


def _some(plugin: str, architectures: Sequence[str]) -> str:
    """Return architectures as text; of many, the first few, and the command that lists all."""
    if len(architectures) <= NAMED:
        return ", ".join(architectures)
    named, others = ", ".join(architectures[:NAMED_OF_MANY]), len(architectures) - NAMED_OF_MANY
    return f"{named} and {others} others (`accel-bench plugins show {plugin}`)"


def _wrong_family(scenario: Scenario, plugin: ActivePlugin) -> Iterable[str]:
    """Yield a reason if the task does not train the catalog family of the scenario's model."""
    known = getattr(plugin.instance, "families", None)
    family = family_of(scenario.model)
    if known is not None and family is not None and family not in known:
        trained = ", ".join(sorted(known))
        yield f"trains models of {trained}, and {scenario.model.id} is one of {family}"


def _devices(scenario: Scenario, machine: Machine) -> Iterable[str]:
    """Yield reasons if this machine, on which the ranks run, lacks the devices or the memory."""
    resources = scenario.resources
    kind = device_type(resources.device)
    names = kind.find(machine)
    if not kind.on_host and len(names) < resources.devices:
        yield f"{resources.devices} {kind.label} devices are asked for, {len(names)} are here"
    if lack := resources.lacks_memory(0, machine.memory_bytes):
        yield f"this machine {lack}"
    if resources.device_type is not None:
        for name in dict.fromkeys(names[: resources.devices]):
            if not resources.is_device(name):
                yield f"device_type is {resources.device_type}, and a device here is {name}"
    if lack := _small_device(scenario, machine):
        yield lack
    if "torch" in machine.versions and (lack := kind.lacks(machine.versions["torch"])):
        yield lack


def _backend(scenario: Scenario, python: tuple[str, ...]) -> Iterable[str]:
    """Yield a reason if the ranks' torch lacks the backend of the process group. `python` is the
    command of the ranks' interpreter; empty for this one."""
    asked = scenario.resources.backend
    known = {} if asked is None else process_group_backends(python)
    kind = device_type(scenario.resources.device).torch_type
    usable = [name for name, types in known.items() if kind in types]
    if known and asked not in usable:
        yield (
            f"resources.backend is {asked}, and for {kind} torch here has "
            f"{', '.join(usable) or 'no backend'}; null takes the device type's own"
        )


@lru_cache
def process_group_backends(python: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Return the backends of an interpreter's torch, each with the device types it supports.
    `python` is the interpreter's command; empty for this one. Another process imports torch; the
    mapping is empty if that process fails."""
    command = [*python, "-c", ASK_BACKENDS] if python else python_command("-c", ASK_BACKENDS)
    with suppress(subprocess.SubprocessError, ValueError, IndexError):
        done = subprocess.run(
            command,
            cwd=Path(sys.executable).anchor,
            capture_output=True,
            text=True,
            check=True,
            timeout=ASK_SECONDS,
        )
        # Whatever torch prints while it is imported stands above.
        known: Mapping[str, Sequence[str]] = json.loads(done.stdout.splitlines()[-1])
        return known
    return {}


def _small_device(scenario: Scenario, machine: Machine) -> str:
    """Return a message on a GPU with less memory than required; empty if every GPU has enough."""
    resources = scenario.resources
    needed = resources.device_memory_bytes
    for gpu in machine.gpus[: resources.devices]:
        if needed is not None and gpu.memory_bytes < needed:
            return (
                f"{gpu.name} has {gpu.memory_bytes / 2**30:.1f} GiB of memory, and "
                f"resources.device_memory_gib is {resources.device_memory_gib}"
            )
    return ""


def _resources(scenario: Scenario) -> Iterable[str]:
    """Yield reasons why resources, mode and precision contradict one another, on any machine."""
    resources = scenario.resources
    kind = device_type(resources.device)
    if resources.device_type is not None and kind.on_host:
        yield f"device_type is {resources.device_type}, and the device is {resources.device}"
    if resources.device_memory_gib is not None and kind.on_host:
        yield f"device_memory_gib is {resources.device_memory_gib}, and the device is cpu"
    if scenario.generates and scenario.evaluates:
        yield "nothing is trained in mode inference: leave `evaluate` and data.held_out out"
    dtype, precision = scenario.train.autocast_dtype, scenario.train.precision
    if dtype is not None and dtype not in kind.autocast_dtypes:
        others = " or ".join(f"{PRECISION_OF[name]}" for name in sorted(kind.autocast_dtypes))
        where = "a CPU" if kind.on_host else kind.label
        yield f"{precision} is not possible on {where}; use {others or 'as-is'}"


def _known_device(scenario: Scenario, allowed: frozenset[str] | None) -> str:
    """Return the device type: by torch's name if `allowed` has that, else by the scenario's."""
    name = scenario.resources.device
    torch_type = device_type(name).torch_type
    return torch_type if allowed and torch_type in allowed else name


def _requirements(plugin: ActivePlugin) -> Iterable[str]:
    """Yield requirements of the plugin that the job's Python environment does not meet."""
    requires = plugin.instance.requires
    if plugin.unmet_there is not None:
        yield from plugin.unmet_there
    elif plugin.distribution == OWN_DISTRIBUTION:
        # We would not run without our own requirements; classes in the box can have more.
        yield from filter(None, map(unmet_requirement, requires))
    else:
        yield from find(plugin.name).unmet(requires)


def _missing_reader(scenario: Scenario) -> Iterable[str]:
    """Yield a reason, with the extra to install, if no library reads the quantized checkpoint."""
    model = scenario.model
    directory = model_directory(model) if model.weights == "pretrained" else None
    settings = read_config(directory).get("quantization_config") if directory else None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    plugin = plugin_meant_by(str(method)) if method else None
    if plugin is not None and (reason := missing_extra(plugin)):
        yield f"model.id {model.id!r} is a checkpoint that is quantized by {method}; {reason}"


def _working_copies(scenario: Scenario, active: ActivePlugins) -> Iterable[str]:
    """Yield a reason if the precision needs copies of the weights and no plugin makes them."""
    if not scenario.train.keeps_master_weights:
        return
    parallel = active.answers("parallelize_model")
    if parallel is None or not parallel.instance.makes_working_copies:
        yield (
            f"train.precision: {MASTER_WEIGHTS} needs a plugin that parallelizes the model and "
            "makes bfloat16 copies of its weights, as the stack master-weights has one; or use "
            "bf16-autocast"
        )


def _declared(
    scenario: Scenario, plugin: ActivePlugin, machine: Machine, architecture: str | None
) -> Iterable[str]:
    """Yield a reason for each declaration of the plugin's class that is not met."""
    declared = plugin.instance
    # Models of another task are of other architectures: one of the two reasons is enough.
    if declared.tasks is None or scenario.task.use in declared.tasks:
        yield from _wrong_architecture(plugin, architecture)
    if plugin.slot == "task":
        yield from _wrong_family(scenario, plugin)
    for what, value, allowed in (
        ("device", _known_device(scenario, declared.devices), declared.devices),
        ("model.dtype", scenario.model.dtype, declared.dtypes),
        ("task", scenario.task.use, declared.tasks),
        ("mode", scenario.mode, declared.modes),
    ):
        if allowed is not None and value not in allowed:
            known = ", ".join(sorted(allowed))
            yield f"does not work with {what} {value}; it works with {known}"
    if declared.single_node and scenario.resources.nodes > 1:
        yield f"starts processes on one node, {scenario.resources.nodes} are asked for"
    trains = not scenario.generates
    if declared.needs_adapter and trains and scenario.adapter.use == NO_PLUGIN:
        yield "needs an adapter, and the scenario has none"
    oldest = declared.minimum_compute_capability
    if oldest is not None and scenario.resources.device == "cuda":
        yield from (
            f"needs compute capability {oldest[0]}.{oldest[1]}, {gpu.name} has "
            f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
            for gpu in machine.gpus[: scenario.resources.devices]
            if gpu.compute_capability < oldest
        )
