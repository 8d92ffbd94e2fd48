"""Conversion of training programs' configuration files to scenarios, by plugins' functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_bench.plugins.doors import find_entries
from accel_bench_interop.mapping import Findings
from accel_bench_interop.parse import short_name
from accel_bench_interop.scenario_writer import NativeScenario

CONFIGURATIONS = "accel_bench.configurations"
"""Group of entry points: functions that take a path and return its configuration, or None.

The returned object has `program`, `settings` of a scenario by dotted key, `uses` of a stack, and
`left_out`: the reason for each setting of the file that is not used.
"""

STACK = "imported"
"""Name of the stack with the configuration's accelerations."""

UNNAMED = {
    "model.id": "no model is named, so the scenario trains its small default model; set model.id",
    "data.path": (
        "no data file is named, so the scenario trains on its default data; set data.use (such as "
        "instructions), data.source=path and data.path=FILE"
    ),
}
"""Notices on settings that decide the speed, for files that do not have them."""


def read_scenario(path: Path, findings: Findings) -> NativeScenario | None:
    """Return a configuration file as a scenario, or None if no entry point recognizes the file.

    Ignored and missing settings are added to `findings`. Raises ImportFileError if the file cannot
    be read, and PluginError that names a broken entry point.
    """
    for entry in find_entries(CONFIGURATIONS, "configuration").values():
        with entry.blamed(f"{path}: "):
            config = entry.load()(path)
        if config is None:
            continue
        for key, reason in config.left_out.items():
            findings.drop(key, reason)
        missing = (words for key, words in UNNAMED.items() if key not in config.settings)
        findings.changed += [f"{path.name}: {words}" for words in missing]
        stacks: dict[str, Any] = {"baseline": []}
        return NativeScenario(
            name=short_name(path.stem),
            source=f"{path.name}, a configuration of {config.program}",
            settings=config.settings,
            stacks=stacks | ({STACK: config.uses} if config.uses else {}),
        )
    return None
