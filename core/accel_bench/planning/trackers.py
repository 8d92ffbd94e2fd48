"""Trackers of a plan: which are named, and which can be used here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.plugins.describe import implemented
from accel_bench.plugins.manager import TRACKING, activate_use, load_class
from accel_bench.plugins.registry import find, missing_extra
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.uses import Use


def split_trackers(plugins: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the stacks of `--plugin`, and the trackers among what it names."""
    named = tuple(plugins)
    trackers = tuple(name for name in named if _is_tracker(name))
    return tuple(name for name in named if name not in trackers), trackers


def _is_tracker(name: str) -> bool:
    with suppress(PluginError):  # what is wrong with it is said where its stack is made
        return TRACKING in implemented(load_class(name))
    return False


def add_trackers(draft: Draft, names: Iterable[str]) -> None:
    """Add the trackers of the command line to those of the file."""
    for name in names:
        listed = draft.data.setdefault("trackers", [])
        if not isinstance(listed, list):
            return
        written = [one.get("use") if isinstance(one, dict) else one for one in listed]
        if name not in written:
            draft.places["trackers", len(listed)] = f"--plugin {name}"
            listed.append(name)


def make_trackers(
    file: ResolvedFile, named: Collection[str]
) -> tuple[ActivePlugins | None, tuple[str, ...]]:
    """Return the trackers, None where there is none, and why others are left out.

    One whose library is missing is left out, unless it is among the `named`: those of the command
    line. Raises PluginError for that, for an unknown one and for what is no tracker.
    """
    uses = file.scenario.trackers
    names = [use.use for use in uses]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(
                f"{file.where(('trackers',))}: the tracker {name!r} stands there twice; once is "
                "enough"
            )
    active: list[ActivePlugin] = []
    left_out: list[str] = []
    for number, use in enumerate(uses):
        made, reason = _make(file, number, use)
        if made is not None:
            active.append(made)
        elif use.use in named:
            raise PluginError(f"tracker {use.use!r} cannot be used here: {reason}")
        else:
            left_out.append(f"tracker {use.use!r} is left out: {reason}")
    return (ActivePlugins(active) if active else None), tuple(left_out)


def _make(file: ResolvedFile, number: int, use: Use) -> tuple[ActivePlugin | None, str]:
    """Return the tracker of a use, or why there is none."""
    place = ("trackers", number)
    if reason := missing_extra(use.use):
        return None, reason
    made = activate_use(use, "trackers", place, file.where)
    if TRACKING not in implemented(type(made.instance)):
        raise PluginError(
            f"{file.where(place)}: plugin {use.use!r} is no tracker: it has no {TRACKING}"
        )
    unmet = find(use.use).unmet(made.instance.requires)
    return (None, "; ".join(unmet)) if unmet else (made, "")
