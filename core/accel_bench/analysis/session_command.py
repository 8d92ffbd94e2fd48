"""Command line of a session, reduced to a part of its runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

CHOICES = {"--resume": 0, "--only": 1, "--tag": 1, "--dry-run": 0}
"""Options of a command that select runs, with the number of values of each."""


def without_options(words: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """Return a command's words without `options` (name to number of values) and their values."""
    kept, skip = [], 0
    for word in words:
        name = word.partition("=")[0]
        if skip:
            skip -= 1
        elif name in options:
            skip = 0 if "=" in word else options[name]
        else:
            kept.append(word)
    return kept


def command_for_stack(words: Sequence[str], stack: str, tag: str) -> str:
    """Return a session's command `run` or `scaling` for one stack and tag; empty for any other."""
    if len(words) < 2 or words[1] not in ("run", "scaling"):
        return ""
    kept = without_options(words[2:], CHOICES)
    tagged = ["--tag", tag] if tag else []
    return shlex.join([Path(words[0]).name, words[1], *kept, "--only", stack, *tagged])
