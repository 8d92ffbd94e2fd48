"""Documented functions of the standard library, as instructions available on any machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from textwrap import dedent
from typing import NamedTuple

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.text_sources import TextFile, decode, functions_of, source_lines


class DocumentedFunction(NamedTuple):
    """Function with a docstring, divided into a prompt and an answer."""

    where: str
    """File and line of the function."""

    prompt: str
    """Signature and docstring, without the last line end."""

    answer: str
    """Body of the function, including the line end that precedes it."""


def documented_functions(files: Sequence[TextFile]) -> Iterator[DocumentedFunction]:
    """Yield the documented functions and methods of Python files, in the order of files and lines.

    Inner functions belong to outer ones. Files that are not UTF-8 or valid Python are skipped.
    """
    for file in files:
        try:
            source = decode(file)
            tree = ast.parse(source)
        except (ScenarioError, SyntaxError, ValueError, RecursionError):
            continue
        lines = source_lines(source)
        for node in functions_of(tree):
            if halves := _divided(node, lines):
                yield DocumentedFunction(f"{file.name}:{node.lineno}", *halves)


def _divided(
    node: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]
) -> tuple[str, str] | None:
    """Return the texts of a function's signature with docstring, and of the rest of its body.

    `lines` are the lines of the source file. Returns None if docstring or rest is missing.
    """
    if not (ast.get_docstring(node) or "").strip() or len(node.body) < 2:
        return None
    end = node.body[0].end_lineno or node.lineno
    if node.body[1].lineno <= end:
        return None
    text = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).split("\n")
    head = end - node.lineno + 1
    body = "\n".join(text[head:])
    return ("\n".join(text[:head]), f"\n{body}") if body.strip() else None
