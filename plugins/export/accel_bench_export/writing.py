"""Text of a configuration in YAML or Python, with comments on options without a counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from accel_bench.documents.program import __version__
from accel_bench.scenario.draft import set_path
from accel_bench_export.configuration import Configuration, Part
from accel_bench_export.rules import Expression

WIDTH = 96
"""Maximum characters of a line."""


def text_of(found: Configuration, file: str) -> str:
    """Return the text of a configuration file; `file` is its name in the shown command line."""
    of = f" of the scenario {found.scenario}" if found.scenario else ""
    lines = [
        f"# {found.trainer.title}: the stack {found.stack}{of}, by accel-bench {__version__}.",
        *([f"# {found.command.format(file=file)}"] if found.command else []),
    ]
    made = _python(found) if found.trainer.form == "python" else _yaml(found)
    return "\n".join(map(_one_line, [*lines, *made])) + "\n"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as text on one line: `padding_free: true, packing: false`."""
    return ", ".join(f"{key}: {plain_text(value)}" for key, value in settings.items())


def plain_text(value: Any) -> str:
    """Return a value as YAML on one line; a Python expression unchanged."""
    if isinstance(value, Expression):
        return str(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _one_line(text: str) -> str:
    """Return a line of the file; in a comment, line breaks that names contain become spaces."""
    if not text.lstrip().startswith("#"):
        return text
    return text[: -len(text.lstrip("# "))] + " ".join(text.lstrip("# ").split())


def _yaml(found: Configuration) -> Iterator[str]:
    """Yield each part's comments and its settings as YAML.

    A nested key is written whole in the first part that has it.
    """
    document = _nested(found.settings)
    for part in found.parts:
        yield from _heading(part)
        for key in dict.fromkeys(key.partition(".")[0] for key in part.settings):
            if key in document:
                entry = {key: document.pop(key)}
                yield yaml.safe_dump(
                    entry, sort_keys=False, allow_unicode=True, width=WIDTH
                ).rstrip()


def _python(found: Configuration) -> Iterator[str]:
    """Yield the lines of a Python function that sets the program's configuration."""
    yield from found.trainer.imports
    yield from ("", "", "def exported(config):")
    for part in found.parts:
        yield from (f"    {line}" for line in _heading(part))
        for key, value in part.settings.items():
            text = str(value) if isinstance(value, Expression) else repr(value)
            yield f"    config.{key} = {text}"
    yield "    return config"


def _heading(part: Part) -> Iterator[str]:
    yield f"# {part.title}"
    yield from (f"#   {comment}" for comment in part.comments)


def _nested(settings: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in settings.items():
        set_path(document, key.split("."), value)
    return document
