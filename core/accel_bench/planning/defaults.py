"""What the command line and the plugins add to a scenario before it is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from accel_bench.catalog.models import architecture_of
from accel_bench.documents.load import Location
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.plugin import Plugin
from accel_bench.plugins.manager import NO_PLUGIN, load_class
from accel_bench.plugins.registry import find
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import Scenario, ScenarioFile, StackEntry
from accel_bench.scenario.uses import Use

ADAPTER_WHEN_NEEDED = "lora"
"""The adapter that is added to the work when a plugin needs one and the scenario has none."""

USUAL_DTYPE = "float32"
"""What `model.dtype` is when nobody sets it."""

METRIC_ON_GPU = "nvml"
"""The metric that is measured beside the default ones where there is a GPU."""


def add_stack(draft: Draft, wish: str) -> None:
    """Add the stack of `--plugin`; a file without stacks of its own is the baseline as it is."""
    names = wish.split("+")
    for name in names:
        find(name)
    stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
    if not isinstance(stacks, dict):
        return
    if stacks.get(wish, {"use": names}) != {"use": names}:
        raise ScenarioError(
            f"{draft.where(('stacks', wish))}: the file has a stack {wish!r} of its own, so "
            f"--plugin {wish} cannot add one; --only {wish} runs it"
        )
    stacks[wish] = {"use": names}
    draft.places["stacks", wish] = f"--plugin {wish}"


def add_what_plugins_need(
    draft: Draft, file: ScenarioFile, chosen: Sequence[str]
) -> tuple[str, ...]:
    """Add an adapter or a dtype that a chosen stack's plugin needs to the work of every stack.

    A comparison changes one thing: so the baseline gets them too. What the file sweeps, or the
    stack sets itself, is not added. Returns notices: of what was added, and of what cannot be known
    yet. Raises PluginError with the place where a plugin is named that is unknown or broken.
    """
    _check_slots(draft, file)
    uses = list(_uses(draft, file, chosen))
    notices = [*_add_adapter(draft, uses), *_add_dtype(draft, uses)]
    notices += [text for use in uses for text in _unknown_architectures(file, use)]
    return tuple(dict.fromkeys(notices))


class _ChosenUse(NamedTuple):
    """A plugin in a stack that is to be run."""

    name: str
    """What `use` calls it."""

    kind: type[Plugin[Any]]
    """Its class."""

    entry: StackEntry
    """The stack that uses it."""

    decided: frozenset[str]
    """Keys that the file sweeps or the stack sets."""


def _uses(draft: Draft, file: ScenarioFile, chosen: Sequence[str]) -> Iterator[_ChosenUse]:
    """Import what the chosen stacks name, in order."""
    for stack in chosen:
        entry = file.stacks[stack]
        decided = frozenset({*file.sweep, *file.zip, *entry.set})
        for number, use in enumerate(entry.use):
            with _located(draft, ("stacks", stack, "use", number)):
                yield _ChosenUse(use.use, load_class(use.use), entry, decided)


def _check_slots(draft: Draft, file: ScenarioFile) -> None:
    """Look up what the file names for its slots."""
    for slot in file.SLOTS:
        use = getattr(file, slot).use
        if draft.get(slot) is not None and use != NO_PLUGIN:
            with _located(draft, (slot, "use")):
                find(use)


@contextmanager
def _located(draft: Draft, location: Location) -> Iterator[None]:
    """Say where a plugin is named that cannot be had."""
    try:
        yield
    except PluginError as error:
        raise PluginError(f"{draft.where(location)}: {error}") from error


def _add_adapter(draft: Draft, uses: Sequence[_ChosenUse]) -> Iterator[str]:
    """Add the adapter for the first plugin that needs one."""
    for use in uses:
        if use.kind.needs_adapter and not _is_given(draft, use.decided, "adapter"):
            draft.set("adapter.use", ADAPTER_WHEN_NEEDED, f"added for {use.name}")
            added = f"adapter: {ADAPTER_WHEN_NEEDED}"
            yield f"{added} added to every stack: {use.name} needs one"


def _add_dtype(draft: Draft, uses: Sequence[_ChosenUse]) -> Iterator[str]:
    """Set a dtype for the first plugin that cannot do with the usual one.

    Of those that it allows, one that every other plugin allows too, where there is such a one; then
    the first by name: that prefers bfloat16 to float16, which is right where both are allowed,
    since bfloat16 has the range of float32 and needs no loss scaling.
    """
    for use in uses:
        allowed = use.kind.dtypes
        if not allowed or USUAL_DTYPE in allowed or _is_given(draft, use.decided, "model.dtype"):
            continue
        common = allowed.intersection(*(other.kind.dtypes or allowed for other in uses))
        dtype = min(common or allowed)
        draft.set("model.dtype", dtype, f"added for {use.name}")
        yield f"model.dtype: {dtype} set for every stack: {use.name} needs it"


def _unknown_architectures(file: ScenarioFile, use: _ChosenUse) -> Iterator[str]:
    """Say of which models only the worker will know whether the plugin supports them."""
    known = use.kind.restricted_model_archs
    key = "model.id"
    ids = (use.entry.set[key],) if key in use.entry.set else (file.model.id,)
    for name in file.sweep.get(key) or file.zip.get(key) or ids:
        model = file.model.model_copy(update={"id": str(name)})
        if known is not None and architecture_of(model) is None:
            yield (
                f"{use.name} supports {', '.join(sorted(known))}: whether {name} is one of them is "
                "only known when it is loaded"
            )


def sweep_seeds(draft: Draft, count: int) -> None:
    """Have `--seeds` sweep weights and data together, from the seeds that the file sets."""
    if draft.get("zip") is not None:
        raise ScenarioError(f"{draft.where(('zip',))}: --seeds cannot be added to a zip")
    values = {}
    for key in ("train.seed", "data.seed"):
        slot, _, name = key.partition(".")
        settings = draft.data.get(slot)
        first = settings.pop(name, 0) if isinstance(settings, dict) else 0
        if not isinstance(first, int):
            raise ScenarioError(f"{draft.where((slot, name))}: {key} is no whole number")
        values[key] = list(range(first, first + count))
    for key, seeds in values.items():
        draft.set(f"zip.{key}", seeds, f"--seeds {count}")


def with_metrics_of_device(scenario: Scenario) -> Scenario:
    """Where nobody has chosen metrics, a GPU is watched from outside too."""
    if scenario.resources.device != "cuda" or "metrics" in scenario.model_fields_set:
        return scenario
    return scenario.model_copy(update={"metrics": (*scenario.metrics, Use(use=METRIC_ON_GPU))})


def _is_given(draft: Draft, decided: frozenset[str], key: str) -> bool:
    """Whether the file, its sweep or the stack decides on a key, or on the plugin of a slot."""
    written = draft.get(key)
    if isinstance(written, dict):
        written = written.get("use")
    return written is not None or not decided.isdisjoint({key, f"{key}.use"})
