"""What an experiment's id is made of beside its scenario: the machine, versions and plugins."""

from __future__ import annotations

import os
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Machine
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, attribute_errors_to
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.scenario.environment import recorded
from accel_bench.scenario.experiment import Experiment


def environment_facts(
    experiment: Experiment,
    active: ActivePlugins,
    machine: Machine,
    there: Interpreter | None,
) -> dict[str, Any]:
    """Return what changes a result and is in no scenario: versions, devices, fingerprints.

    Of an environment of the scenario's own that is every package.
    """
    resources = experiment.scenario.resources
    device = device_type(resources.device)
    devices = list(device.find(machine)[: resources.devices])
    measured = [plugin for plugin in active.plugins if plugin.slot != "launcher"]
    fingerprints = {plugin.name: _fingerprint(plugin, experiment) for plugin in measured}
    return {
        "python": machine.python,
        "versions": machine.versions,
        "plugins": [plugin.version.model_dump() for plugin in measured],
        "cuda": machine.cuda if resources.device == "cuda" else None,
        "driver": device.driver(machine),
        "devices": devices,
        "cores": machine.cores,
        "fingerprints": {name: one for name, one in fingerprints.items() if one is not None},
        "variables": recorded(os.environ),
        **({"distributions": there.distributions} if there else {}),
    }


def _fingerprint(plugin: ActivePlugin, experiment: Experiment) -> JsonValue:
    """Return what a plugin adds to the id. Raises HookError when it raises or returns no JSON."""
    with attribute_errors_to(plugin, "fingerprint"):
        found = plugin.instance.fingerprint(experiment)
        canonical_json(found)
    return found
