"""Checks that the plugins and options that a ladder's items name do exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from accel_bench.errors import PluginError, did_you_mean
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, installed
from accel_bench.plugins.shipped import extras, plugin_meant_by
from accel_bench.scenario.models import Work
from accel_bench_ladder.items import Item

SECTIONS = ("train", "resources")
"""Sections of a scenario that contain settings instead of a plugin's options."""


def find_plugins(items: Iterable[Item]) -> None:
    """Raise PluginError if an item names a plugin that is not installed, or an unknown section."""
    for item, use in ((entry, use) for entry in items for use in entry.uses):
        try:
            find(use.use)
        except PluginError as error:
            problem = _unknown_head(use.use) if item.switch else None
            raise PluginError(
                f"{item.place}: ladder item {item.text!r}: {problem or error}"
            ) from error


def _unknown_head(head: str) -> str | None:
    """Return the error message for an unknown `head`, the text before an item's dot.

    Returns None if `head` means a plugin that an extra (optional dependency) provides.
    """
    if plugin_meant_by(head) is not None:
        return None
    known = [*(plugin.name for plugin in installed()), *extras(), *Work.SLOTS, *SECTIONS]
    hint = did_you_mean(head, known)
    return f"{head!r} is neither a plugin nor a part of the work{hint}"


def check_switches(items: Sequence[Item], held: Sequence[Item], below: set[str]) -> None:
    """Raise PluginError if an item switches on an option that is missing or not boolean.

    `held` are the items of the chosen stacks, `below` the plugins of the baseline. An option
    without a default is refused too if its plugin is among `below` or is added by another item.
    """
    named = {use.use for item in held for use in item.uses}
    for item in items:
        if item.switch is None or item.switch[0] not in named:
            continue
        plugin, option = item.switch
        label = f"{item.place}: ladder item {item.text!r}"
        try:
            fields = load_class(plugin).Options.model_fields
        except PluginError:
            continue  # The plan says so of the stack that uses it.
        if option not in fields:
            hint = did_you_mean(option, fields)
            raise PluginError(f"{label}: plugin {plugin!r} has no option {option!r}{hint}")
        annotation = fields[option].annotation
        if bool not in (annotation, *get_args(annotation)):
            raise PluginError(
                f"{label}: option {option!r} takes more than true and false; "
                f"write {{use: {plugin}, {option}: VALUE}}"
            )
        others = [other for other in items if plugin in (use.use for use in other.uses)]
        alone = plugin in below or any(other.switch is None for other in others)
        if fields[option].default is None and alone:
            where = "the baseline" if plugin in below else "another item"
            raise PluginError(
                f"{label}: {where} has {plugin!r} without it, and which parts of that are on "
                "depends on which are named; name every part in an item of its own, "
                f"{plugin}.PART, and leave {plugin!r} alone out"
            )
