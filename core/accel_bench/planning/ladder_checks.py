"""Check the plugins, and their boolean options, that a ladder's items name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from accel_bench.errors import PluginError, did_you_mean
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, installed
from accel_bench.plugins.shipped import extras, plugin_meant_by
from accel_bench.scenario.ladder_items import Item
from accel_bench.scenario.models import Work

SECTIONS = ("train", "resources")
"""Parts of the work that hold settings and no plugin's options."""


def check_ladder(file: ResolvedFile, chosen: Sequence[str]) -> None:
    """Check the items that a chosen stack has or switches off against the installed plugins.

    Raises PluginError with file, line, item and the nearest name.
    """
    if file.ladder is None:
        return
    items, subsets = file.ladder.items, file.ladder.subsets
    held = {number for name in chosen if name in subsets for number in subsets[name][0]}
    named = {use.use for number in held for use in items[number].uses}
    below = {use.use for use in file.stacks[file.ladder.baseline].use}
    for number, item in enumerate(items):
        if number in held:
            _check_plugins(item)
        if item.switch and item.switch[0] in named:
            _check_switch(item, *item.switch)
            _check_alone(item, items, below)


def _check_plugins(item: Item) -> None:
    """Refuse a plugin that is not installed; a misspelt section of the work looks like one."""
    for use in item.uses:
        try:
            find(use.use)
        except PluginError as error:
            problem = _unknown_head(use.use) if item.switch else None
            raise PluginError(
                f"{item.place}: ladder item {item.text!r}: {problem or error}"
            ) from error


def _unknown_head(head: str) -> str | None:
    """Return the error for an unknown `head.option`; None where an extra brings the plugin."""
    if plugin_meant_by(head) is not None:
        return None
    known = [*(plugin.name for plugin in installed()), *extras(), *Work.SLOTS, *SECTIONS]
    hint = did_you_mean(head, known)
    return f"{head!r} is neither a plugin nor a part of the work{hint}"


def _check_alone(item: Item, items: Sequence[Item], below: set[str]) -> None:
    """Refuse to switch a part on by name where its plugin, unnamed, chooses the parts itself.

    Naming one would change others too. `below` are the plugins of the baseline.
    """
    plugin, option = item.switch or ("", "")
    if load_class(plugin).Options.model_fields[option].default is not None:
        return
    others = [other for other in items if plugin in (use.use for use in other.uses)]
    if plugin in below or any(other.switch is None for other in others):
        where = "the baseline" if plugin in below else "another item"
        raise PluginError(
            f"{item.place}: ladder item {item.text!r}: {where} has {plugin!r} without it, and "
            "which parts of that are on depends on which are named; name every part in an item of "
            f"its own, {plugin}.PART, and leave {plugin!r} alone out"
        )


def _check_switch(item: Item, plugin: str, option: str) -> None:
    """Refuse an option that the plugin has not, or that takes more than true and false."""
    fields = load_class(plugin).Options.model_fields
    label = f"{item.place}: ladder item {item.text!r}"
    if option not in fields:
        hint = did_you_mean(option, fields)
        raise PluginError(f"{label}: plugin {plugin!r} has no option {option!r}{hint}")
    annotation = fields[option].annotation
    if bool not in (annotation, *get_args(annotation)):
        raise PluginError(
            f"{label}: option {option!r} takes more than true and false; "
            f"write {{use: {plugin}, {option}: VALUE}}"
        )
