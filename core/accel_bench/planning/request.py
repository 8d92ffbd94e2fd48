"""What the command line asks of a plan, and the scenario with its changes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from accel_bench.catalog.models import ModelCard, cards_of_family
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.plugin import Plugin
from accel_bench.plugins.manager import is_tracker, load_class
from accel_bench.plugins.registry import find
from accel_bench.plugins.validation import marked_methods
from accel_bench.scenario.draft import Draft, Setting
from accel_bench.scenario.sweep import Choices
from accel_bench.scenario.uses import DataUse, Use, slot_defaults

OF_ALL_DATA = DataUse.owned_keys() - {"use"}
"""Settings of `data` that hold whichever plugin brings them."""


@dataclass(frozen=True)
class PlanRequest:
    """Changes of the command line to the file."""

    plugins: tuple[str, ...] = ()
    """Stacks to add: a plugin's name, or several joined by `+`."""

    trackers: tuple[str, ...] = ()
    """Trackers to add to those of the file."""

    only: tuple[str, ...] = ()
    """Stacks to run, beside the baseline: STACK in every scenario, or SCENARIO/STACK in one; empty
    runs all."""

    tags: tuple[str, ...] = ()
    """Tags of the sweep points to run, with `*` for any letters; empty runs all."""

    point: str = ""
    """Only sweep point to plan, as `Experiment.point` names it; empty plans all."""

    reference_point: str = ""
    """Tag of the sweep point with which the others are compared; empty takes the first."""

    overrides: tuple[tuple[str, Any], ...] = ()
    """Dotted keys and their values."""

    seeds: int = 0
    """Repeat every experiment with that many seeds of weights and data; 0 leaves the file's."""

    family: str = ""
    """Run every model of the catalog of this family, in the place of `model.id`; empty does not."""

    no_baseline: bool = False

    sections: tuple[str, ...] = ()
    """Sections of other distributions that the comparison shows."""

    race: bool = False
    """Run no more rounds of stacks that are surely not the best."""

    allow_environment: bool = False
    """Let the scenario set any environment variable."""

    trust_remote_code: bool = False
    """Let models bring code of their own."""

    observers: tuple[Use, ...] = ()
    """Plugins that observe steps of every run after its measured window."""

    max_runs: int = 1000

    force: bool = False
    """Plan what needs more memory than the machine has."""

    oversubscribe: bool = False
    """Plan more processes than cores."""

    choices: Choices = field(default_factory=dict)
    """Sizes that were worked out where the scenario says `auto`."""

    stand_ins: bool = False
    """Plan with a stand-in where such a size is not worked out, and say so; else refuse that."""

    build_environments: bool = True
    """Build the scenario's environments that are missing, which takes minutes."""

    notify: Callable[[str], object] = print
    """Takes a line before something that takes minutes."""

    def stacks_of(self, scenario: str) -> tuple[str, ...]:
        """Return the names of `only` that are of a scenario."""
        split = (name.rpartition("/") for name in self.only)
        return tuple(stack for own, _, stack in split if own in ("", scenario))

    def leaves_out(self, scenario: str) -> bool:
        """Return whether `only` names stacks of other scenarios alone."""
        return bool(self.only) and not self.stacks_of(scenario)


def split_trackers(plugins: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the stacks of `--plugin`, and the trackers among what it names."""
    trackers: list[str] = []
    for name in plugins:
        with suppress(PluginError):  # what is wrong with it is said where its stack is made
            trackers += [name] if is_tracker(load_class(name)) else []
    return tuple(name for name in plugins if name not in trackers), tuple(trackers)


def requested_draft(draft: Draft, request: PlanRequest) -> Draft:
    """Return the draft with the stacks, overrides, trackers and axes of the command line."""
    draft = copy.deepcopy(draft)
    for stack in request.plugins:
        add_stack(draft, stack)
    draft.override(request.overrides)
    _add_trackers(draft, request.trackers)
    axes = _sweep_family(draft, request.family) if request.family else []
    axes += _sweep_seeds(draft, request, axes) if request.seeds else []
    return draft.with_values(axes)


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


def _add_trackers(draft: Draft, names: Iterable[str]) -> None:
    """Add the trackers of the command line to those of the file."""
    for name in names:
        listed = draft.data.setdefault("trackers", [])
        if not isinstance(listed, list):
            return
        written = [one.get("use") if isinstance(one, dict) else one for one in listed]
        if name not in written:
            draft.places["trackers", len(listed)] = f"--plugin {name}"
            listed.append(name)


def _refuse_zip(draft: Draft, option: str, axes: Sequence[Setting] = ()) -> None:
    """Refuse an axis of the command line where keys move together, in the file or by `axes`."""
    places = [place for key, _, place in axes if key.startswith("zip.")]
    if draft.data.get("zip") is not None:
        places.append(draft.where(("zip",)))
    if places:
        raise ScenarioError(f"{places[-1]}: {option} cannot be added to a zip")


def _sweep_seeds(draft: Draft, request: PlanRequest, axes: Sequence[Setting]) -> list[Setting]:
    """Return the axis of the seeds of weights and data together (`--seeds`), from those that the
    file sets and no longer needs."""
    # Before a list of them is made.
    refuse_too_many(str(draft.data.get("name")), request.seeds, request.max_runs)
    _refuse_zip(draft, "--seeds", axes)
    seeds = []
    for slot in ("train", "data"):
        settings = draft.data.get(slot)
        first = settings.pop("seed", 0) if isinstance(settings, dict) else 0
        if not isinstance(first, int):
            raise ScenarioError(f"{draft.where((slot, 'seed'))}: {slot}.seed is no whole number")
        values = list(range(first, first + request.seeds))
        seeds.append((f"zip.{slot}.seed", values, f"--seeds {request.seeds}"))
    return seeds


def _sweep_family(draft: Draft, family: str) -> list[Setting]:
    """Return the axis of the models of the catalog of one family (`--family`), which replaces the
    file's model.

    A task that the file names chooses those that were trained by it; else each model has its own,
    and data that this task learns from.
    """
    cards = cards_of_family(family)
    _refuse_zip(draft, "--family")
    model, place = draft.data.get("model"), f"--family {family}"
    if isinstance(model, dict):
        model.pop("id", None)
    written = draft.data.get("task")
    task = written.get("use") if isinstance(written, dict) else written
    names = [name for name, card in cards.items() if task in (None, card.task)] or list(cards)
    if task is not None:
        return [("sweep.model.id", names, place)]
    axes: list[Setting] = []
    if draft.data.get("sweep") is None and draft.data.get("tag") is None:
        axes.append(("tag.format", "{model.id}", place))
    axes.append(("zip.model.id", names, place))
    axes.append(("zip.task.use", [cards[name].task for name in names], place))
    of_file = draft.data.get("data") or slot_defaults().slots["data"]
    replaced = _replaced_data(of_file, [cards[name] for name in names])
    if any(replaced):
        draft.data.pop("data", None)
        axes.append(("zip.data", [own or of_file for own in replaced], place))
        draft.notices += _of_replaced(of_file, list(filter(None, replaced)), place)
    return axes


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


def refuse_too_many(scenario: str, runs: int, max_runs: int) -> None:
    if runs > max_runs:
        raise ScenarioError(
            f"scenario {scenario!r} asks for {runs:,} runs, more than --max-runs {max_runs:,}; "
            "sweep over less, or raise the limit"
        )
