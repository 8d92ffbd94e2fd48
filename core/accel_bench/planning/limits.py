"""The memory that an experiment needs at least, and that the machine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from accel_bench.analysis.wording import size
from accel_bench.catalog.estimate import parameters_of
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
    ranks = scenario.resources.devices if on_host(scenario) else 1

    def copies(what: str) -> float:
        each = known.get(what) if isinstance(known, Mapping) else known
        return ranks * (other if each is None else each)

    return copies


def on_host(scenario: Scenario) -> bool:
    """Return whether ranks share the host's memory and cores."""
    return device_type(scenario.resources.device).on_host


def _available(scenario: Scenario, machine: Machine) -> int | None:
    if on_host(scenario):
        return machine.memory_bytes
    used = machine.gpus[: scenario.resources.devices]
    return min((gpu.memory_bytes for gpu in used), default=None)
