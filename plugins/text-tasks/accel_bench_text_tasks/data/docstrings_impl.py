"""Read pairs of a docstring and its function from the sources of the standard library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench_text_tasks.data.docstrings import DocstringsOptions
from accel_bench_text_tasks.data.pairs_impl import PairDataset, Settings, Texts, load, tokenized

SHORTEST = 3
"""Fewest words of a docstring that says something."""


def dataset_of(run: Run, options: DocstringsOptions) -> PairDataset:
    """Return the pairs as tokens, from the cache where they were tokenized before."""
    files = text_sources.stdlib_files(options.limit_bytes)
    key = {
        "content": text_sources.content_digest(files),
        "prefixes": [options.query_prefix, options.passage_prefix],
        "samples": options.samples,
    }
    settings = Settings(options.vocab_size)
    folder = tokenized(run, "docstrings", key, lambda: _texts(files, options), settings)
    more = "raise data.samples or data.limit_bytes"
    return load(folder, run.scenario.data.sequence_length, more)


def _texts(files: list[text_sources.TextFile], options: DocstringsOptions) -> Texts:
    pairs = (pair for file in files for pair in _pairs(file))
    return [
        (options.query_prefix + said, options.passage_prefix + done)
        for said, done in islice(pairs, options.samples)
    ]


def _pairs(file: text_sources.TextFile) -> Iterator[tuple[str, str]]:
    """Yield the first paragraph of each docstring of a source, and the function without it.

    A source that the limit has cut is left out.
    """
    if file.cut:
        return
    try:
        tree = ast.parse(text_sources.decode(file))
    except (ScenarioError, ValueError, SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
            continue
        said = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        if len(said.split()) >= SHORTEST:
            node.body = node.body[1:]
            yield said, ast.unparse(node)
