"""Instructions that any machine has: documented functions of the standard library."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from textwrap import dedent
from typing import NamedTuple

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.text_sources import TextFile, decode, functions_of, source_lines


class DocumentedFunction(NamedTuple):
    """A function with a docstring, in two parts."""

    where: str
    """File and line."""

    prompt: str
    """Its signature and docstring, without the last line end."""

    answer: str
    """Its body, from that line end on: tokenizers join it with the indentation behind it."""


def documented_functions(files: Sequence[TextFile]) -> Iterator[DocumentedFunction]:
    """Yield the documented functions and methods of Python files, in order.

    Inner ones belong to the outer ones; what is no UTF-8, or no Python of this version, is left
    out.
    """
    for file in files:
        try:
            source = decode(file)
            tree = ast.parse(source)
        except (ScenarioError, SyntaxError, ValueError, RecursionError):
            continue
        lines = source_lines(source)
        for node in functions_of(tree):
            if found := _divided(node, lines):
                yield DocumentedFunction(f"{file.name}:{node.lineno}", *found)


def _divided(
    node: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]
) -> tuple[str, str] | None:
    """Return a function's documented head and its body; None where it lacks one of them."""
    if not (ast.get_docstring(node) or "").strip() or len(node.body) < 2:
        return None
    end = node.body[0].end_lineno or node.lineno
    if node.body[1].lineno <= end:
        return None
    text = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).split("\n")
    head = end - node.lineno + 1
    body = "\n".join(text[head:])
    return ("\n".join(text[:head]), f"\n{body}") if body.strip() else None
