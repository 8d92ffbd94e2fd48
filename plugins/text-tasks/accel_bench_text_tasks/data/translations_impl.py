"""Join the catalogues of two languages by the texts that both translate."""

from __future__ import annotations

from itertools import islice

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench_text_tasks.data import catalogues
from accel_bench_text_tasks.data.pairs_impl import PairDataset, Settings, Texts, load, tokenized
from accel_bench_text_tasks.data.translations import TranslationsOptions

SHORTEST, LONGEST = 3, 400
"""Letters of the texts that are taken."""


def dataset_of(run: Run, options: TranslationsOptions) -> PairDataset:
    """Return the pairs as tokens, from the cache where they were tokenized before."""
    langs = options.source_lang, options.target_lang
    of_both = [one for lang in langs for one in catalogues.files(lang, options.path)]
    key = {"content": catalogues.digest(of_both), "langs": [*langs], "samples": options.samples}
    settings = Settings(options.vocab_size, (f"<{langs[0]}>", f"<{langs[1]}>"))
    folder = tokenized(run, "translations", key, lambda: _texts(options), settings)
    more = "raise data.samples, or bring more catalogues"
    return load(folder, run.scenario.data.sequence_length, more)


def _texts(options: TranslationsOptions) -> Texts:
    source = _translated(options.source_lang, options.path)
    target = _translated(options.target_lang, options.path)
    # What is translated is English itself.
    keys = source if target is None else target if source is None else source.keys() & target
    pairs = (
        (key if source is None else source[key], key if target is None else target[key])
        for key in sorted(keys or ())
    )
    good = [one for one in pairs if one[0] != one[1] and all(map(_is_text, one))]
    if not good:
        raise ScenarioError(
            f"data translations: no text is translated into both {options.source_lang} and "
            f"{options.target_lang}; choose other languages, or set data.path"
        )
    # Evenly spread: texts that begin alike stand together.
    return list(islice(good[:: max(1, len(good) // options.samples)], options.samples))


def _translated(lang: str, path: str | None) -> dict[str, str] | None:
    """Return translations by what they translate; None for English."""
    if catalogues.is_english(lang):
        return None
    files = catalogues.files(lang, path)
    return {text: found for file in files for text, found in catalogues.messages(file)}


def _is_text(text: str) -> bool:
    return SHORTEST <= len(text) <= LONGEST and any(letter.isalpha() for letter in text)
