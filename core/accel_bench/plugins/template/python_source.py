"""Put Python source together from pieces: sections of a file, and imports in their usual order."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping


def sections(text: str) -> dict[str, str]:
    """Split a file at its lines `== name`; each section without blank lines around it."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            found[line.removeprefix("== ")] = []
        else:
            found[next(reversed(found))].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def joined(parts: Iterable[Mapping[str, str]], section: str, between: str = "\n") -> str:
    """One section of all parts that have it."""
    return between.join(filter(None, (part.get(section, "") for part in parts)))


def import_lines(lines: Iterable[str]) -> str:
    """Imports once each: the standard library, then the rest; `import x` before `from x import y`.

    Takes lines of the form `import x` and `from x import y, z`; returns text without a last line
    end, whose lines have at most 100 characters.
    """
    plain: set[str] = set()
    names: defaultdict[str, set[str]] = defaultdict(set)
    for line in filter(None, lines):
        words = line.split(maxsplit=3)
        if words[0] == "import":
            plain.add(words[1])
        else:
            names[words[1]] |= {name.strip() for name in words[3].split(",")}
    groups = []
    for standard in (True, False):
        group = [f"import {m}" for m in sorted(plain) if _is_standard(m) is standard]
        group += [_from(m, names[m]) for m in sorted(names) if _is_standard(m) is standard]
        groups.append("\n".join(group))
    return "\n\n".join(filter(None, groups))


def _from(module: str, names: Iterable[str]) -> str:
    """One import; names in the order of ruff: constants, classes, then functions."""
    ordered = sorted(names, key=lambda name: (not name[0].isupper(), name))
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= 88:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
