"""Tags: short names of sweep points, safe as folder names, made from their values."""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.files import slug
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.overrides import look_up
from accel_bench.scenario.settings import TagRule


def make_tag(rule: TagRule, sweep: Mapping[str, JsonValue], facts: Mapping[str, Any]) -> str:
    """Return the tag of a point, which does not depend on the order of its keys.

    `facts` holds every key that a tag can name. Empty without a rule or a sweep. Raises
    ScenarioError for a key that no experiment has.
    """
    if rule.off:
        return ""
    if rule.format is not None:
        return slug("".join(_filled(rule.format, facts)))
    if rule.keys is not None:
        sweep = {key: _fact(facts, key) for key in rule.keys}
    return automatic_tag(sweep)


def automatic_tag(sweep: Mapping[str, JsonValue]) -> str:
    """Return the tag of swept keys in alphabetical order: `micro_batch_size_4-seed_1`.

    A key is shortened to its last word if that is unique.
    """
    last = Counter(key.rpartition(".")[2] for key in sweep)
    names = {key: key.rpartition(".")[2] for key in sweep}
    parts = [
        f"{names[key] if last[names[key]] == 1 else key}_{_text(sweep[key])}"
        for key in sorted(sweep)
    ]
    return slug("-".join(parts)) if parts else ""


def is_chosen(tag: str, sweep: Mapping[str, JsonValue]) -> bool:
    """Return whether a tag was chosen by the scenario's author, and not made automatically."""
    return bool(tag) and tag != automatic_tag(sweep)


def _text(value: JsonValue) -> str:
    """Return a value as part of a name; the keys of mappings in alphabetical order."""
    if isinstance(value, dict):
        return "-".join(f"{key}_{_text(value[key])}" for key in sorted(value))
    if isinstance(value, list):
        return "-".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def _filled(form: str, facts: Mapping[str, Any]) -> Iterable[str]:
    """Yield the parts of a format, with keys replaced by their values."""
    try:
        parts = list(string.Formatter().parse(form))
    except ValueError as error:
        raise ScenarioError(f"{form!r}: {error}; write a brace that is none twice") from error
    for literal, key, spec, conversion in parts:
        yield literal
        if spec or conversion:
            raise ScenarioError(f"{form!r}: write {{{key}}} alone, without `:` or `!` behind it")
        if key is not None:
            yield _text(_fact(facts, key))


def _fact(facts: Mapping[str, Any], key: str) -> JsonValue:
    known, value = look_up(facts, key)
    if not known:
        parent = look_up(facts, key.rpartition(".")[0])[1] if "." in key else facts
        names = parent if isinstance(parent, Mapping) else facts
        hint = did_you_mean(key.rpartition(".")[2], names)
        raise ScenarioError(f"no experiment of this scenario has the key {key!r}{hint}")
    found: JsonValue = value
    return found
