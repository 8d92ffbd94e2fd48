"""Check what plugins declare that they need against an experiment and a machine."""

from __future__ import annotations

from collections.abc import Iterable

from accel_bench.catalog.models import architecture_of
from accel_bench.errors import PluginError
from accel_bench.machine.info import Machine
from accel_bench.plugins.compatibility import OWN_DISTRIBUTION
from accel_bench.plugins.manager import ActivePlugin, ActivePlugins, wrong_answer
from accel_bench.plugins.registry import find, unmet_requirement
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import NO_PLUGIN


def unmet_constraints(
    experiment: Experiment, active: ActivePlugins, machine: Machine
) -> tuple[str, ...]:
    """Return why this experiment cannot run here, from declarations and from `check_scenario`."""
    reasons = list(_resources(experiment.scenario, machine))
    for member in active.plugins:
        found = _declared(experiment.scenario, member, machine)
        reasons += [f"{member.name}: {reason}" for reason in found]
    for member, answers in active.call_lists(
        "check_scenario", experiment=experiment, machine=machine
    ):
        reasons += [_named(member, reason) for reason in answers]
    return tuple(dict.fromkeys(reasons))


def refuse_architecture(active: ActivePlugins, architecture: str) -> None:
    """Check the model's real architecture, such as `LlamaForCausalLM`, against all plugins.

    For the worker, once the model's configuration is read: the plan does not know that of a hub id.
    Raises PluginError with every plugin that does not support it.
    """
    reasons = [
        f"{member.name}: {reason}"
        for member in active.plugins
        for reason in _wrong_architecture(member, architecture)
    ]
    if reasons:
        raise PluginError("; ".join(reasons))


def _wrong_architecture(member: ActivePlugin, architecture: str | None) -> Iterable[str]:
    """Yield why a plugin does not work with an architecture; None is an unknown one."""
    known = member.instance.restricted_model_archs
    if known is not None and architecture is not None and architecture not in known:
        yield f"does not support {architecture}; it supports {listing(known)}"


def _resources(scenario: Scenario, machine: Machine) -> Iterable[str]:
    """Yield which devices are missing, and what they cannot do."""
    wanted = scenario.resources
    if wanted.device == "cuda" and len(machine.gpus) < wanted.devices:
        yield f"{wanted.devices} CUDA devices are asked for, {len(machine.gpus)} are here"
    if wanted.device == "cuda" and machine.versions.get("torch", "").endswith("+cpu"):
        yield "the installed torch is built for CPUs only"
    if wanted.device == "cpu" and scenario.train.precision == "fp16-autocast":
        yield "fp16-autocast is not possible on a CPU; use bf16-autocast"


def _declared(scenario: Scenario, member: ActivePlugin, machine: Machine) -> Iterable[str]:
    """Yield which declarations of the plugin's class are not met."""
    plugin = member.instance
    if member.distribution == OWN_DISTRIBUTION:
        # We would not run without our own requirements; classes in the box can have more.
        yield from filter(None, map(unmet_requirement, plugin.requires))
    else:
        yield from find(member.name).unmet_with(plugin.requires)
    if plugin.restricted_model_archs is not None:
        yield from _wrong_architecture(member, architecture_of(scenario.model))
    for what, value, allowed in (
        ("device", scenario.resources.device, plugin.devices),
        ("model.dtype", scenario.model.dtype, plugin.dtypes),
        ("task", scenario.task, plugin.tasks),
        ("mode", scenario.mode, plugin.modes),
    ):
        if allowed is not None and value not in allowed:
            yield f"does not work with {what} {value}; it works with {listing(allowed)}"
    if plugin.single_node and scenario.resources.nodes > 1:
        yield f"starts processes on one node, {scenario.resources.nodes} are asked for"
    if plugin.needs_adapter and scenario.adapter.use == NO_PLUGIN:
        yield "needs an adapter, and the scenario has none"
    oldest = plugin.minimum_compute_capability
    if oldest is not None and scenario.resources.device == "cuda":
        yield from (
            f"needs compute capability {oldest[0]}.{oldest[1]}, {gpu.name} has "
            f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
            for gpu in machine.gpus[: scenario.resources.devices]
            if gpu.compute_capability < oldest
        )


def _named(member: ActivePlugin, reason: object) -> str:
    """Return a reason that names its plugin. Raises HookError for one that is no text."""
    if not isinstance(reason, str):
        raise wrong_answer(member, "check_scenario", "a list of texts", reason)
    return reason if member.name in reason else f"{member.name}: {reason}"


def listing(names: Iterable[str]) -> str:
    """Return names in one line."""
    return ", ".join(sorted(names))
