"""Versions and hardware of runs, as far as they can change a figure, and what differs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.documents.base import JsonValue
from accel_bench.machine.info import Machine
from accel_bench.result import PluginVersion, Result


def facts(machine: Machine, plugins: Sequence[PluginVersion]) -> dict[str, JsonValue]:
    """Return versions and hardware by name, as far as they can change a figure."""
    gpus = [gpu.name for gpu in machine.gpus]
    named = {**machine.versions, **machine.libraries}
    named |= {plugin.distribution: plugin.version for plugin in plugins}
    shown = {
        "processor": machine.processor,
        "cores": machine.cores,
        "system": machine.system,
        "gpus": ", ".join(f"{count} x {name}" for name, count in Counter(gpus).items()),
        "driver": machine.driver,
        "cuda": machine.cuda,
        "python": machine.python,
        **{name: named[name] for name in sorted(named)},
    }
    return {name: value for name, value in shown.items() if value}


def plugins_of(results: Sequence[Result]) -> list[PluginVersion]:
    """Return the plugins that were active in any of the runs, each once."""
    return list(dict.fromkeys(plugin for run in results for plugin in run.plugins))


def differences(
    there: Mapping[str, JsonValue], here: Mapping[str, JsonValue]
) -> tuple[Difference, ...]:
    """Return the facts that differ; null where one side lacks it."""
    names = dict.fromkeys((*there, *here))
    both = ((name, there.get(name), here.get(name)) for name in names)
    return tuple(Difference(key=name, a=a, b=b) for name, a, b in both if a != b)


def differing(there: Sequence[Result], here: Sequence[Result]) -> tuple[Difference, ...]:
    """Return the facts in which the machines of both differ, as far as they were stored."""
    machines = [next((run.machine for run in runs if run.machine), None) for runs in (there, here)]
    if None in machines:
        return ()
    both = zip(machines, (there, here), strict=True)
    left, right = (facts(machine, plugins_of(runs)) for machine, runs in both if machine)
    return differences(left, right)
