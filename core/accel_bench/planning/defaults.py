"""Add to a scenario what the command line and the plugins of its stacks need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from accel_bench.catalog.models import ModelCard, architecture_of, cards_of_family
from accel_bench.documents.load import Location
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugin import Plugin
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, installed
from accel_bench.plugins.validation import marked_methods
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import Scenario, StackEntry
from accel_bench.scenario.uses import NO_PLUGIN, DataUse, Use, slot_defaults

OF_ALL_DATA = DataUse.owned_keys() - {"use"}
"""Settings of `data` that hold whichever plugin brings them."""

USUAL_DTYPE = "float32"
"""What `model.dtype` is when it is not set."""


def add_stack(draft: Draft, stack: str) -> None:
    """Add the stack of `--plugin`; a file without stacks is itself the baseline."""
    names = stack.split("+")
    for name in names:
        find(name)
    stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
    if not isinstance(stacks, dict):
        return
    if stacks.get(stack, {"use": names}) != {"use": names}:
        raise ScenarioError(
            f"{draft.where(('stacks', stack))}: the file has a stack {stack!r} of its own, so "
            f"--plugin {stack} cannot add one; --only {stack} runs it"
        )
    stacks[stack] = {"use": names}
    draft.places["stacks", stack] = f"--plugin {stack}"


def sweep_seeds(draft: Draft, count: int) -> None:
    """Sweep the seeds of weights and data together (`--seeds`), from those that the file sets."""
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


def sweep_family(draft: Draft, family: str) -> None:
    """Sweep over the models of the catalog of one family (`--family`).

    A task that the file names chooses those that were trained by it; else each model has its own,
    and data that this task learns from.
    """
    cards = cards_of_family(family)
    if draft.get("zip") is not None:
        raise ScenarioError(f"{draft.where(('zip',))}: --family cannot be added to a zip")
    model, place = draft.data.get("model"), f"--family {family}"
    if isinstance(model, dict):
        model.pop("id", None)
    written = draft.get("task")
    task = written.get("use") if isinstance(written, dict) else written
    names = [name for name, card in cards.items() if task in (None, card.task)] or list(cards)
    if task is not None:
        draft.set("sweep.model.id", names, place)
        return
    if draft.get("sweep") is None and draft.get("tag") is None:
        draft.set("tag.format", "{model.id}", place)
    draft.set("zip.model.id", names, place)
    draft.set("zip.task.use", [cards[name].task for name in names], place)
    of_file = draft.data.get("data") or slot_defaults().slots["data"]
    replaced = _replaced_data(of_file, [cards[name] for name in names])
    if any(replaced):
        data = [own or of_file for own in replaced]
        draft.data.pop("data", None)
        draft.set("zip.data", data, place)
        draft.notices += _of_replaced(of_file, list(filter(None, replaced)), place)


def _replaced_data(of_file: Any, cards: Sequence[ModelCard]) -> list[dict[str, Any] | None]:
    """Return for each model the data of its task, with the file's settings that all data have; None
    where its task learns from the file's."""
    written = of_file if isinstance(of_file, dict) else {"use": of_file}
    named = written.get("use", slot_defaults().slots["data"])
    kind = None
    with suppress(PluginError):  # Which is raised later, with its place in the file.
        kind = load_class(named) if isinstance(named, str) else None
    family_data = slot_defaults().family_data
    return [
        _data_of(card, family_data[card.task], written)
        if kind and card.task in family_data and not _teaches(kind, card.task)
        else None
        for card in cards
    ]


def _teaches(data: type[Plugin[Any]], task: str) -> bool:
    """Return whether a task that does not learn from tokens can learn from a plugin's data.

    Where the plugin declares no tasks, its batches are tokens unless it simulates others.
    """
    if data.tasks is not None:
        return task in data.tasks
    return "simulate_batch" in dict(marked_methods(data))


def _data_of(card: ModelCard, own: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a card's task, with the slot's settings that are written, in images and
    texts that the model takes."""
    kept = {key: written[key] for key in sorted(OF_ALL_DATA & written.keys())}
    if kept.get("sequence_length") == "auto":
        del kept["sequence_length"]  # It is worked out from the data that are replaced.
    length = kept.get("sequence_length")
    longest = _of_tower(card, "text_config", "max_position_embeddings")
    if isinstance(length, int) and isinstance(longest, int):
        kept["sequence_length"] = min(length, longest)
    size = _of_tower(card, "vision_config", "image_size")
    return {**own, **kept, **({"image_size": size} if size and "image_size" in own else {})}


def _of_tower(card: ModelCard, tower: str, key: str) -> Any:
    """Return a key of the configuration of a part of a model, or of one without such a part."""
    config = card.config.get(tower, card.config)
    return config.get(key) if isinstance(config, dict) else None


def _of_replaced(of_file: Any, replaced: Sequence[Mapping[str, Any]], place: str) -> Iterator[str]:
    """Yield what took the place of the file's data, and which of its settings no longer count."""
    written = of_file if isinstance(of_file, dict) else {"use": of_file}
    named = written.get("use", slot_defaults().slots["data"])
    lost = sorted(written.keys() - OF_ALL_DATA - {"use"})
    without = f" (left out: {', '.join(lost)})" if lost else ""
    for use, count in Counter(str(data["use"]) for data in replaced).items():
        yield (
            f"data: {use} in the place of {named}{without} for {count} of the models of {place}, "
            f"whose task does not learn from {named}"
        )


def add_what_plugins_need(
    file: ResolvedFile, chosen: Sequence[str]
) -> tuple[ResolvedFile, tuple[str, ...]]:
    """Add an adapter or a dtype that a chosen stack's plugin needs to the work of every stack.

    A comparison changes one thing: so the baseline gets them too. What the file sweeps, or the
    stack sets itself, is not added. Returns the file with notices of what was added, and of what
    cannot be known yet. Raises PluginError with the place where an unknown or broken plugin is
    named.
    """
    for slot in file.scenario.SLOTS:
        use = getattr(file.scenario, slot).use
        if file.is_set(slot) and use != NO_PLUGIN:
            with _located(file, (slot, "use")):
                find(use)
    for number, metric in enumerate(file.scenario.metrics):
        with _located(file, ("metrics", number, "use")):
            find(metric.use)
    uses = list(_chosen_uses(file, chosen))
    notices: list[str] = []
    adapter = slot_defaults().needed_adapter
    for chosen_use in uses if file.scenario.mode == "train" else ():
        if chosen_use.kind.needs_adapter and not _is_given(file, chosen_use, "adapter"):
            file = file.with_setting("adapter.use", adapter, f"added for {chosen_use.name}")
            notices.append(f"adapter: {adapter} added to every stack: {chosen_use.name} needs one")
    for chosen_use, dtype in _needed_dtypes(uses):
        if not _is_given(file, chosen_use, "model.dtype"):
            file = file.with_setting("model.dtype", dtype, f"added for {chosen_use.name}")
            notices.append(f"model.dtype: {dtype} set for every stack: {chosen_use.name} needs it")
    notices += [text for use in uses for text in _unknown_architectures(file, use)]
    return file, tuple(dict.fromkeys(notices))


def with_gpu_metrics(scenario: Scenario) -> Scenario:
    """Return the scenario with the installed metrics of a GPU, unless metrics were chosen."""
    if scenario.resources.device != "cuda" or "metrics" in scenario.model_fields_set:
        return scenario
    here = {plugin.use for plugin in installed()}
    added = tuple(Use(use=name) for name in slot_defaults().gpu_metrics if name in here)
    return scenario.model_copy(update={"metrics": (*scenario.metrics, *added)})


class _ChosenUse(NamedTuple):
    """A plugin of a stack that is to be run."""

    name: str
    kind: type[Plugin[Any]]
    entry: StackEntry


def _chosen_uses(file: ResolvedFile, chosen: Sequence[str]) -> Iterator[_ChosenUse]:
    """Import the plugins of the chosen stacks, in order."""
    for stack in chosen:
        entry = file.stacks[stack]
        for number, use in enumerate(entry.use):
            with _located(file, ("stacks", stack, "use", number)):
                yield _ChosenUse(use.use, load_class(use.use), entry)


@contextmanager
def _located(file: ResolvedFile, location: Location) -> Iterator[None]:
    try:
        yield
    except PluginError as error:
        raise PluginError(f"{file.where(location)}: {error}") from error


def _needed_dtypes(uses: Sequence[_ChosenUse]) -> Iterator[tuple[_ChosenUse, str]]:
    """Yield each plugin that does not work with the usual dtype, with the first by name of those
    that every plugin allows, else that it allows itself.

    That prefers bfloat16, which has the range of float32, to float16, which needs loss scaling.
    """
    for use in uses:
        allowed = use.kind.dtypes
        if allowed and USUAL_DTYPE not in allowed:
            common = allowed.intersection(*(other.kind.dtypes or allowed for other in uses))
            yield use, min(common or allowed)


def _unknown_architectures(file: ResolvedFile, use: _ChosenUse) -> Iterator[str]:
    """Yield a notice for each model of which only the worker can say whether it is supported."""
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


def _is_given(file: ResolvedFile, use: _ChosenUse, key: str) -> bool:
    """Return whether the file, its sweep or the stack decides on a key, or on a slot's plugin."""
    written = file.written.get(key)
    if isinstance(written, dict):
        written = written.get("use")
    decided = {*file.scenario.sweep, *file.scenario.zip, *use.entry.set}
    return written is not None or not decided.isdisjoint({key, f"{key}.use"})
