"""Items of an ablation ladder, read from any of their spellings in a file, with short labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.load import kind
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import StackEntry, Work
from accel_bench.scenario.uses import Use

MAXIMUM_ITEMS = 32
"""Maximum number of items on a ladder; n items make nearly 2 n stacks."""

LABEL_LENGTH = 48
"""Maximum length of an item's label, so that names of stacks are valid folder names."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
"""Pattern of an item's `name`, without dots, which separate the parts of dotted keys."""


@dataclass(frozen=True)
class Item:
    """One item of a ladder: plugins and settings that are added to a stack."""

    text: str
    """Text of the item in the file, for error messages."""

    label: str
    """Short name of the item, unique on its ladder."""

    place: str
    """Location of the item in the file, for error messages."""

    uses: tuple[Use, ...] = ()
    """Plugins that the item adds with options, or whose options it changes."""

    settings: tuple[tuple[str, Any], ...] = ()
    """Scenario settings that the item changes: dotted keys with values."""

    switch: tuple[str, str] | None = None
    """Plugin and boolean option that the item sets to true; without the item it is false."""


def read_items(draft: Draft) -> tuple[Item, ...]:
    """Return the items of a draft's ladder, in order. Raises ScenarioError for an invalid item."""
    written = draft.data.get("ladder")
    if written is None:
        return ()
    where = draft.where(("ladder",))
    if not isinstance(written, list):
        raise ScenarioError(f"{where}: `ladder` is a list of items, not {kind(written)}")
    if len(written) > MAXIMUM_ITEMS:
        raise ScenarioError(
            f"{where}: the ladder has {len(written):,} items; at most {MAXIMUM_ITEMS} may be"
        )
    items = [_item(draft, number, raw) for number, raw in enumerate(written)]
    labels = _unique([item.label for item in items], [_longer(item) for item in items])
    return tuple(replace(item, label=label) for item, label in zip(items, labels, strict=True))


def _item(draft: Draft, number: int, raw: Any) -> Item:
    """Return item `number` of the draft's ladder from its content in the file, `raw`.

    Raises ScenarioError if the content is neither a valid text nor a valid mapping.
    """
    place = draft.where(("ladder", number))
    if isinstance(raw, str):
        return _short_item(raw, place)
    if not isinstance(raw, dict) or not {"use", "set"} & set(raw):
        raise ScenarioError(
            f"{place}: ladder item {number + 1} is neither text nor has it `use` or `set`; write a "
            "plugin, PLUGIN.OPTION, SECTION.KEY, {use: PLUGIN, OPTION: VALUE} or {set: {KEY: "
            "VALUE}}"
        )
    rest = {key: value for key, value in raw.items() if key != "name"}
    if "set" not in rest and not isinstance(rest["use"], list):
        rest = {"use": [rest]}
    elif not isinstance(rest.get("use", []), list):
        rest["use"] = [rest["use"]]
    entry = validate(
        StackEntry, rest, lambda inner: draft.where(("ladder", number, *inner)), ScenarioError
    )
    settings = tuple(entry.set.items())
    if not entry.use and not settings:
        raise ScenarioError(f"{place}: ladder item {number + 1} neither uses nor sets anything")
    label = _given(raw["name"], place) if "name" in raw else _label(entry.use, settings)
    uses = [f"{use.use}({_options(use)})" if use.options else use.use for use in entry.use]
    text = ", ".join([*uses, *entry.set])
    return Item(text, label, place, entry.use, settings)


def _short_item(text: str, place: str) -> Item:
    """Return the item for a text: `plugin`, `plugin.option`, or a key whose value becomes true.

    `place` is the item's location in the file. Raises ScenarioError if the text is invalid.
    """
    head, dot, option = text.partition(".")
    if dot and head in Work.model_fields:
        settings = ((text, True),)
        return Item(text, _label((), settings), place, settings=settings)
    raw = {"use": head, **({option: True} if dot else {})}
    use = validate(Use, raw, lambda _: place, ScenarioError)
    switch = (head, option) if dot else None
    return Item(text, _word(option or head), place, (use,), switch=switch)


def _given(name: Any, place: str) -> str:
    """Return an item's `name` from the file as its label.

    Raises ScenarioError, with the item's location `place`, if the name is no valid label.
    """
    if isinstance(name, str) and len(name) <= LABEL_LENGTH and LABEL.fullmatch(name):
        return name
    raise ScenarioError(
        f"{place}: the name {name!r} of a ladder's item must begin with a letter or digit, hold "
        f"nothing else but those and _ + -, and be no longer than {LABEL_LENGTH}"
    )


def _label(uses: Sequence[Use], settings: Iterable[tuple[str, Any]]) -> str:
    words = [_setting(key.rpartition(".")[2], value) for key, value in settings]
    return _word("+".join([*(use.use for use in uses), *words]))


def _longer(item: Item) -> str:
    """Return a longer label for an item, to use if another item has the same short label."""
    if len(item.uses) == 1 and item.uses[0].options and not (item.settings or item.switch):
        return _word(_options(item.uses[0]))
    parts = [f"{use.use}-{_options(use)}" if use.options else use.use for use in item.uses]
    parts += [_setting(key, value) for key, value in item.settings]
    return _word("+".join(parts))


def _options(use: Use) -> str:
    return "-".join(_setting(key, value) for key, value in use.options.items())


def _setting(key: str, value: Any) -> str:
    """Return the label of a setting, such as `mode-max-autotune`; just the key if it is true."""
    text = value if isinstance(value, str) else canonical_json(value)
    return key if value is True else f"{key}-{text}"


def _word(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_+]+", "-", text).strip("-+_")
    return plain[:LABEL_LENGTH].strip("-+_") or "item"


def _unique(short: Sequence[str], long: Sequence[str]) -> list[str]:
    """Return a unique label for each item: the short one, else the long one, else with a number.

    The first of several equal short labels stays short. A number is added to the long label.
    """
    counts = Counter(short)
    chosen: list[str] = []
    for label, longer in zip(short, long, strict=True):
        # The first of several keeps its short label: it reads best in the names of stacks.
        unique = longer if counts[label] > 1 and label in chosen else label
        number = 2
        while unique in chosen:
            tail = f"-{number}"
            unique, number = f"{longer[: LABEL_LENGTH - len(tail)]}{tail}", number + 1
        chosen.append(unique)
    return chosen
