"""The sweep of `run --family`: all catalog models of a family, each with data for its task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from accel_bench.catalog.models import ModelCard, cards_of_family
from accel_bench.errors import PluginError
from accel_bench.plugin import Plugin
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.validation import marked_methods
from accel_bench.scenario.draft import Draft, Setting
from accel_bench.scenario.uses import DataUse, slot_defaults

OF_ALL_DATA = DataUse.owned_keys() - {"use"}
"""Settings of `data` that are independent of the data plugin."""


def sweep_family(draft: Draft, family: str) -> list[Setting]:
    """Return the sweep over a family's catalog models, as settings of the scenario in `draft`.

    Removes from `draft` the model's id, and the data if they do not suit the models. If the file
    names a task, only models of this task are swept; else each model has its own task, with data
    for it.
    """
    cards = cards_of_family(family)
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
    """Return for each card the data section for its task, or None if the file's data suit the task.

    `of_file` is the file's section `data`; its common settings are copied into the sections.
    """
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
    """Return whether a data plugin suits `task`, a task that does not train on tokens.

    A plugin without declared tasks suits such a task only if it simulates its own batches.
    """
    if data.tasks is not None:
        return task in data.tasks
    return "simulate_batch" in dict(marked_methods(data))


def _data_of(card: ModelCard, own: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data section of a model: that of its task, with settings of the file.

    `own` is the data section of the task, and `written` the file's, of which common settings are
    taken. Image size and sequence length are adapted to the model.
    """
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
    """Return the value at `key` in a part of the model's configuration; None if there is none.

    `tower` names the part, such as `vision_config`; without this part, the whole configuration is
    read.
    """
    config = card.config.get(tower, card.config)
    return config.get(key) if isinstance(config, dict) else None


def _of_replaced(of_file: Any, replaced: Sequence[Mapping[str, Any]], place: str) -> Iterator[str]:
    """Yield a sentence for each data plugin that is used in place of the file's.

    It names the settings left out. `of_file` is the file's section `data`, `replaced` are the
    sections used in its place, and `place` names the command-line option.
    """
    written = of_file if isinstance(of_file, dict) else {"use": of_file}
    named = written.get("use", slot_defaults().slots["data"])
    lost = sorted(written.keys() - OF_ALL_DATA - {"use"})
    without = f" (left out: {', '.join(lost)})" if lost else ""
    for use, count in Counter(str(data["use"]) for data in replaced).items():
        yield (
            f"data: {use} in the place of {named}{without} for {count} of the models of {place}, "
            f"whose task does not learn from {named}"
        )
