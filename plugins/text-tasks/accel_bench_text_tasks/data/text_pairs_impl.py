"""Text pairs of the data plugins `docstrings` (a docstring, its function) and `translations`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench_text_tasks.data import catalogues
from accel_bench_text_tasks.data.pairs import DocstringsOptions, TranslationsOptions
from accel_bench_text_tasks.data.pairs_impl import (
    BPESettings,
    PairDataset,
    Texts,
    load,
    tokenized,
)

FEWEST_WORDS = 3
"""Minimum number of words of a docstring that is used."""

SHORTEST, LONGEST = 3, 400
"""Minimum and maximum number of characters of translated texts."""


def functions_of(run: Run, options: DocstringsOptions) -> PairDataset:
    """Return the dataset of docstrings and their functions, tokenized now unless it is cached."""
    files = text_sources.stdlib_files(options.limit_bytes)
    key = {
        "content": text_sources.content_digest(files),
        "prefixes": [options.query_prefix, options.passage_prefix],
        "samples": options.samples,
    }
    settings = BPESettings(options.vocab_size)
    folder = tokenized(run, "docstrings", key, lambda: _documented(files, options), settings)
    more = "raise data.samples or data.limit_bytes"
    return load(folder, run.scenario.data.sequence_length, more)


def _documented(files: list[text_sources.TextFile], options: DocstringsOptions) -> Texts:
    pairs = (pair for file in files for pair in _pairs(file))
    return [
        (options.query_prefix + said, options.passage_prefix + done)
        for said, done in islice(pairs, options.samples)
    ]


def _pairs(file: text_sources.TextFile) -> Iterator[tuple[str, str]]:
    """Yield the first paragraph of each function's docstring, and the function without docstring.

    A file that is cut at the byte limit, or cannot be parsed, is skipped.
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
        if len(said.split()) >= FEWEST_WORDS:
            node.body = node.body[1:]
            yield said, ast.unparse(node)


def translations_of(run: Run, options: TranslationsOptions) -> PairDataset:
    """Return the dataset of texts in two languages, tokenized now unless it is cached."""
    langs = options.source_lang, options.target_lang
    of_both = [file for lang in langs for file in catalogues.files(lang, options.path)]
    key = {"content": catalogues.digest(of_both), "langs": [*langs], "samples": options.samples}
    settings = BPESettings(options.vocab_size, (f"<{langs[0]}>", f"<{langs[1]}>"))
    folder = tokenized(run, "translations", key, lambda: _in_both(options), settings)
    more = "raise data.samples, or bring more catalogues"
    return load(folder, run.scenario.data.sequence_length, more)


def _in_both(options: TranslationsOptions) -> Texts:
    source = _translated(options.source_lang, options.path)
    target = _translated(options.target_lang, options.path)
    # What is translated is English itself.
    keys = source if target is None else target if source is None else source.keys() & target
    pairs = (
        (key if source is None else source[key], key if target is None else target[key])
        for key in sorted(keys or ())
    )
    good = [pair for pair in pairs if pair[0] != pair[1] and all(map(_is_text, pair))]
    if not good:
        raise ScenarioError(
            f"data translations: no text is translated into both {options.source_lang} and "
            f"{options.target_lang}; choose other languages, or set data.path"
        )
    # Evenly spread: texts that begin alike stand together.
    return list(islice(good[:: max(1, len(good) // options.samples)], options.samples))


def _translated(lang: str, path: str | None) -> dict[str, str] | None:
    """Return a language's translations by original message, from catalogues below `path`; None for
    English, which needs none."""
    if catalogues.is_english(lang):
        return None
    files = catalogues.files(lang, path)
    return {text: translated for file in files for text, translated in catalogues.messages(file)}


def _is_text(text: str) -> bool:
    return SHORTEST <= len(text) <= LONGEST and any(letter.isalpha() for letter in text)
