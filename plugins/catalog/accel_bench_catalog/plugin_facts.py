"""Descriptions and checks of plugins, for which each plugin is imported."""

from __future__ import annotations

import inspect
import json
import subprocess
from typing import Any

from accel_bench.documents.program import python_command
from accel_bench.errors import AccelBenchError
from accel_bench.plugin import Plugin
from accel_bench.plugins.describe import implemented, options_of, plain_value, slots_of
from accel_bench.plugins.doors import OWN_DISTRIBUTION, DoorEntry, find_entries
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, installed
from accel_bench.plugins.validation import declarations, marked_methods, validation_problems

FACTS = "accel_bench.plugin_facts"
"""Group of entry points for facts about plugins: functions of a plugin's name that return a list of
mappings, which `plugins show` prints as a table under the name of the entry point."""

PROCESS_SECONDS = 60.0
"""Timeout in seconds of a process that imports one plugin, longer than the import's timeout."""


def describe(name: str) -> dict[str, Any]:
    """Import a plugin; return a JSON description of its package, hooks, declarations and options.

    Raises PluginError if the plugin is broken.
    """
    plugin = find(name)
    kind = load_class(name)
    return {
        "name": name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "summary": (inspect.getdoc(kind) or "").partition("\n")[0],
        "fills": list(slots_of(kind)) or ["stack"],
        "hooks": implemented(kind),
        **{key: plain_value(getattr(kind, key)) for key in declarations()},
        "unmet": list(plugin.unmet(kind.requires)),
        "options": options_of(kind),
        **{entry.name: _facts_of(entry, name) for entry in find_entries(FACTS, "fact").values()},
    }


def _facts_of(entry: DoorEntry, name: str) -> list[dict[str, Any]]:
    """Return the rows that an entry point of the group `FACTS` returns for the plugin `name`.

    Raises PluginError, which names the entry point's package, if it fails.
    """
    with entry.blamed():
        return list(entry.load()(name))


def check(name: str) -> dict[str, Any]:
    """Return a plugin's `name`, whether it is `usable` here, and `reasons`, a list of its problems.

    A plugin whose import fails is unusable.
    """
    try:
        described = describe(name)
        problems = [*described["unmet"], *_contract_problems(load_class(name))]
    except AccelBenchError as error:
        return {"name": name, "usable": False, "reasons": [str(error)]}
    return {"name": name, "usable": not problems, "reasons": problems}


def check_all() -> list[dict[str, Any]]:
    """Return the result of `check` for each installed plugin, with its package and version.

    The plugins are ordered by name. A foreign plugin is imported in a separate process, so that its
    imports and errors are not attributed to another plugin.
    """
    return [
        {
            **(
                check(plugin.use)
                if plugin.distribution == OWN_DISTRIBUTION
                else _check_apart(plugin.use)
            ),
            "distribution": plugin.distribution,
            "version": plugin.version,
        }
        for plugin in installed()
    ]


def _check_apart(name: str) -> dict[str, Any]:
    command = python_command("-m", "accel_bench", "plugins", "check", name, "--format", "json")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROCESS_SECONDS
        )
        checked: dict[str, Any] = json.loads(done.stdout)
        return checked
    except subprocess.TimeoutExpired:
        problem = f"its import has not ended after {PROCESS_SECONDS:g} s"
    except ValueError:
        problem = f"its import ends the process (exit code {done.returncode})"
    return {"name": name, "usable": False, "reasons": [problem]}


def _contract_problems(kind: type[Plugin[Any]]) -> list[str]:
    """Return a plugin class's violations of the plugin interface, and its undescribed options."""
    problems = [
        f"option {o['name']!r} has no description" for o in options_of(kind) if not o["description"]
    ]
    problems += validation_problems(kind)
    if not marked_methods(kind):
        problems.append("implements no hook")
    return problems
