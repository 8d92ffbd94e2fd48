"""Check of the stacks' plugins, and default settings that they need in every stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from accel_bench.catalog.models import architecture_of
from accel_bench.documents.load import Location
from accel_bench.errors import PluginError
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugin import Plugin
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, missing_extras
from accel_bench.scenario.draft import Setting
from accel_bench.scenario.models import BASELINE, StackEntry, Work
from accel_bench.scenario.uses import NO_PLUGIN, slot_defaults

USUAL_DTYPE = "float32"
"""Default of `model.dtype`."""


class _ChosenUse(NamedTuple):
    """Use of a plugin in a stack that will run, with the plugin's class."""

    name: str
    kind: type[Plugin[Any]]
    entry: StackEntry


def needs_of_plugins(
    file: ResolvedFile, request: PlanRequest
) -> tuple[list[Setting], tuple[str, ...]]:
    """Return settings (adapter, dtype) for all stacks that any stack's plugin needs, and notices.

    The baseline gets them too, since a comparison changes one thing. Keys that are swept, or set by
    the stack, are unchanged. Notices state the settings, an assumed baseline, and models whose
    support is not known yet. Raises PluginError, with the location in the file, for an unknown or
    broken plugin and for an unknown item of a ladder.
    """
    baseline = file.scenario.baseline_name()
    # Of these a plugin that is not installed is an error; any other stack is skipped without it.
    needed = {baseline, *request.plugins, *request.stacks_of(file.scenario.name)}
    chosen = [
        name
        for name, stack in file.stacks.items()
        if name in needed or not missing_extras(use.use for use in stack.use)
    ]
    uses = _checked_uses(file, chosen)
    settings, notices = list[Setting](), list(file.written.notices)
    adapter, trains = slot_defaults().needed_adapter, file.scenario.mode == "train"
    adapted = (use for use in uses if trains and use.kind.needs_adapter)
    if use := _first_undecided(file, adapted, "adapter"):
        settings.append(("adapter.use", adapter, f"added for {use.name}"))
        notices.append(f"adapter: {adapter} added to every stack: {use.name} needs one")
    narrower = (use for use in uses if USUAL_DTYPE not in (use.kind.dtypes or {USUAL_DTYPE}))
    if use := _first_undecided(file, narrower, "model.dtype"):
        dtype = _dtype_for(use, uses)
        settings.append(("model.dtype", dtype, f"added for {use.name}"))
        notices.append(f"model.dtype: {dtype} set for every stack: {use.name} needs it")
    notices += [text for use in uses for text in _unknown_architectures(file, use)]
    if not file.is_set("baseline") and baseline != BASELINE:
        notices.append(f"no stack is called baseline: {baseline!r} is taken for it")
    return settings, tuple(dict.fromkeys(notices))


def _checked_uses(file: ResolvedFile, chosen: Sequence[str]) -> list[_ChosenUse]:
    """Return the chosen stacks' plugins with their classes. Raises PluginError for a broken one."""
    if file.ladder is not None:
        file.ladder.check_plugins(chosen)
    for location, name in _named_in_work(file):
        with _located(file, location):
            find(name)
    uses = []
    for stack in chosen:
        for number, use in enumerate(file.stacks[stack].use):
            with _located(file, ("stacks", stack, "use", number)):
                uses.append(_ChosenUse(use.use, load_class(use.use), file.stacks[stack]))
    return uses


def _named_in_work(file: ResolvedFile) -> Iterator[tuple[Location, str]]:
    """Yield the location and name of each plugin that the file names for a slot or as a metric."""
    for slot in Work.SLOTS:
        use = getattr(file.scenario, slot).use
        if file.is_set(slot) and use != NO_PLUGIN:
            yield (slot, "use"), use
    for number, metric in enumerate(file.scenario.metrics):
        yield ("metrics", number, "use"), metric.use


@contextmanager
def _located(file: ResolvedFile, location: Location) -> Iterator[None]:
    try:
        yield
    except PluginError as error:
        raise PluginError(f"{file.where(location)}: {error}") from error


def _first_undecided(file: ResolvedFile, uses: Iterable[_ChosenUse], key: str) -> _ChosenUse | None:
    """Return the first use for which file, sweep and stack leave `key` (setting or slot) unset."""
    written = file.written.get(key)
    if isinstance(written, dict):
        written = written.get("use")
    swept = {*file.scenario.sweep, *file.scenario.zip}
    undecided = (use for use in uses if {*swept, *use.entry.set}.isdisjoint({key, f"{key}.use"}))
    return next(undecided, None) if written is None else None


def _dtype_for(use: _ChosenUse, uses: Sequence[_ChosenUse]) -> str:
    """Return the alphabetically first dtype that all `uses` support, or else that `use` supports.

    So bfloat16, which has the range of float32, precedes float16, which needs loss scaling.
    """
    allowed = use.kind.dtypes or frozenset()
    return min(allowed.intersection(*(other.kind.dtypes or allowed for other in uses)) or allowed)


def _unknown_architectures(file: ResolvedFile, use: _ChosenUse) -> Iterator[str]:
    """Yield a notice for each model whose support by a plugin is unknown until it is loaded."""
    known = use.kind.restricted_model_archs
    scenario, key = file.scenario, "model.id"
    ids = (use.entry.set.get(key, scenario.model.id),)
    for name in scenario.sweep.get(key) or scenario.zip.get(key) or ids:
        model = scenario.model.model_copy(update={"id": str(name)})
        if known is not None and architecture_of(model) is None:
            yield (
                f"{use.name} supports {', '.join(sorted(known))}: whether {name} is one of them is "
                "only known when it is loaded"
            )
