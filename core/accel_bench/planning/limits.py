"""Refuse what this machine cannot hold: more memory than it has, more processes than cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from accel_bench.analysis.wording import count, join_names, label_of, size
from accel_bench.catalog.estimate import parameters_of
from accel_bench.errors import ScenarioError
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Machine
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, attribute_errors_to
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import NO_PLUGIN

REPLICATES = "DistributedDataParallel"
"""`Plugin.strategy` under which every rank holds the whole model; others may divide it."""


@dataclass(frozen=True)
class MemoryNeed:
    """The memory that an experiment needs at least: activations, caches and code come on top."""

    parameters: int

    parts: Mapping[str, float]
    """Bytes in the memory of one device, by what they are; of all ranks together on a CPU."""

    available_bytes: int | None
    """All memory of the smallest device, free or not; None where there is no such device."""

    @property
    def total_bytes(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Return whether the machine has that much, used or not."""
        return self.available_bytes is None or self.total_bytes <= self.available_bytes

    def describe(self) -> str:
        """Return `at least 696 GiB of memory (174 GiB weights + ...) for 46.7e9 parameters`."""
        parts = " + ".join(f"{size(value)} {what}" for what, value in self.parts.items())
        listed = f" ({parts})" if len(self.parts) > 1 else f" for {next(iter(self.parts))}"
        many = self.parameters >= 1e8
        number = f"{self.parameters / 1e9:.3g}e9" if many else f"{self.parameters:,}"
        return f"at least {size(self.total_bytes)} of memory{listed} of {number} parameters"


def memory_need(
    experiment: Experiment, active: ActivePlugins, machine: Machine
) -> MemoryNeed | None:
    """Return what weights, gradients and optimizer state take; None where no plugin says it.

    A lower bound: what an adapter trains is not counted, and where ranks may share the model, each
    is taken to hold its part alone.
    """
    scenario = experiment.scenario
    parts = _bytes_per_parameter(active.answers("load_model"), experiment)
    parameters = parameters_of(scenario.model) if parts else None
    if parameters is None:
        return None
    if scenario.adapter.use == NO_PLUGIN:
        parts |= _bytes_per_parameter(active.answers("build_optimizer"), experiment)
    copies = device_copies(scenario, active.answers("parallelize_model"))
    return MemoryNeed(
        parameters,
        {what: parameters * each * copies(what) for what, each in parts.items()},
        _available(scenario, machine),
    )


def refuse_needs(needs: Iterable[tuple[Experiment, MemoryNeed]]) -> None:
    """Raise ScenarioError with all stacks that need more memory than there is."""
    stacks: dict[str, list[str]] = {}
    for experiment, need in needs:
        if not need.fits:
            where = "the host" if _on_host(experiment.scenario) else "the device"
            text = f"{need.describe()}, and {where} has {size(need.available_bytes or 0)}"
            name = label_of(experiment)
            stacks.setdefault(text, []).append(name)
    if stacks:
        lines = [f"{join_names(names)}: {text}" for text, names in stacks.items()]
        raise ScenarioError(
            f"not enough memory. {'; '.join(lines)}. Choose a smaller model.id or fewer layers "
            "(model.overrides), a smaller model.dtype, train an adapter (adapter.use=lora), or "
            "pass --force to run it all the same"
        )


def refuse_oversubscription(scenarios: Iterable[Scenario], machine: Machine) -> None:
    """Raise ScenarioError for more processes on a node's CPU than it has cores."""
    on_cpu = [one.resources.devices for one in scenarios if _on_host(one)]
    if (most := max(on_cpu, default=0)) > machine.cores:
        raise ScenarioError(
            f"resources.devices: {most:,} processes would share {count(machine.cores, 'core')}; "
            f"set it to {machine.cores} or less, or pass --oversubscribe"
        )


def _bytes_per_parameter(plugin: ActivePlugin | None, experiment: Experiment) -> dict[str, float]:
    if plugin is None:
        return {}
    with attribute_errors_to(plugin, "bytes_per_parameter"):
        return dict(plugin.instance.bytes_per_parameter(experiment))


def device_copies(scenario: Scenario, parallel: ActivePlugin | None) -> Callable[[str], float]:
    """Return what gives how many times a part of the model is in one device's memory, at least."""
    whole = scenario.world_size == 1 or (parallel and parallel.instance.strategy == REPLICATES)
    known = None
    if parallel is not None:
        with attribute_errors_to(parallel, "fraction_per_device"):
            known = parallel.instance.fraction_per_device(scenario)
    other = 1.0 if whole else 1 / scenario.world_size
    ranks = scenario.resources.devices if _on_host(scenario) else 1

    def copies(what: str) -> float:
        each = known.get(what) if isinstance(known, Mapping) else known
        return ranks * (other if each is None else each)

    return copies


def _on_host(scenario: Scenario) -> bool:
    """Return whether ranks share the host's memory and cores."""
    return device_type(scenario.resources.device).on_host


def _available(scenario: Scenario, machine: Machine) -> int | None:
    if _on_host(scenario):
        return machine.memory_bytes
    used = machine.gpus[: scenario.resources.devices]
    return min((gpu.memory_bytes for gpu in used), default=None)
