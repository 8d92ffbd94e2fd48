"""Data plugins of text or token pairs: `docstrings`, `translations`, `synthetic-pairs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from accel_bench import Batch, Experiment, Options, Run, hookimpl
from accel_bench.modeling.data import text_sources
from accel_bench.modeling.data.data_plugins import SampleData
from accel_bench_text_tasks.data import catalogues

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import BatchPlan, Padding
    from accel_bench.modeling.data.sample_batches import Collate
    from accel_bench_text_tasks.data.pairs_impl import PairDataset


class PairOptions(Options):
    """Options common to all data plugins of text pairs."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Length to pad to: `data.sequence_length`, or the longest of the micro-batch."""

    vocab_size: int = Field(2048, ge=262, le=10_000_000)
    """Maximum size of the vocabulary; at most the model's."""

    samples: int = Field(4096, ge=1, le=10_000_000)
    """Maximum number of pairs in an epoch."""


OptionsT = TypeVar("OptionsT", bound=PairOptions)


class Pairs(SampleData[OptionsT]):
    """Base class of data plugins of pairs; its subclasses make the dataset in `_dataset`."""

    @hookimpl
    def load_data(self, run: Run) -> PairDataset:
        """Return the dataset of pairs, generated or memory-mapped."""
        from accel_bench_text_tasks.data import pairs_impl

        dataset = self._dataset(run)
        run.on_evidence(lambda: pairs_impl.evidence(dataset, self.options.padding))
        return dataset

    def padding(self) -> Padding:
        """Return the padding that the options set."""
        return self.options.padding

    def collate(self, run: Run, plan: BatchPlan) -> Collate:
        """Return the function that makes micro-batches of pairs, in the layout of the run's task
        and with the padding of `plan`."""
        from accel_bench_text_tasks.data import pairs_impl

        return pairs_impl.collate_of(run, plan)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
        """Return a micro-batch of `micro_batch_size` pairs of the full sequence length, for a
        simulation."""
        from accel_bench_text_tasks.data import pairs_impl

        return pairs_impl.simulated_batch(run, micro_batch_size, sequence_length)

    def _dataset(self, run: Run) -> Any:
        raise NotImplementedError


class TextPairs(Pairs[OptionsT]):
    """Base class of data plugins of text pairs, which are tokenized once."""

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Tokenize the texts before the measurement, in a separate process."""
        self._dataset(run)


class DocstringsOptions(PairOptions):
    """Options of `docstrings`: amount of source code, and prefixes of the texts."""

    limit_bytes: int = Field(2_000_000, ge=1, le=10**13)
    """Maximum bytes of source files."""

    query_prefix: str = "query: "
    """Prefix of each docstring, as in the E5 models."""

    passage_prefix: str = "passage: "
    """Prefix of each function."""


class Docstrings(TextPairs[DocstringsOptions]):
    """Pairs of a docstring and its function, from the sources of Python's standard library."""

    Options = DocstringsOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return a hexadecimal digest of the content of the source files."""
        return text_sources.content_digest(text_sources.stdlib_files(self.options.limit_bytes))

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Yield a sentence if there are no source files."""
        if not text_sources.stdlib_files(self.options.limit_bytes):
            yield "Python's standard library is not here as source; use other data"

    def _dataset(self, run: Run) -> PairDataset:
        from accel_bench_text_tasks.data.text_pairs_impl import functions_of

        return functions_of(run, self.options)


class TranslationsOptions(PairOptions):
    """Options of `translations`: languages, and the folder of catalogues."""

    source_lang: str = Field("eng", pattern=r"^[A-Za-z]{2,3}([_@-][A-Za-z]+)*$")
    """Source language as an ISO 639 code, such as `eng`, `fra` or `pt_BR`."""

    target_lang: str = Field("fra", pattern=r"^[A-Za-z]{2,3}([_@-][A-Za-z]+)*$")
    """Target language as an ISO 639 code."""

    path: str | None = None
    """Folder of gettext catalogues, `LANG/LC_MESSAGES/*.mo`; null: the catalogues of this system
    and of the installed Python packages."""


class Translations(TextPairs[TranslationsOptions]):
    """Sentences of programs in two languages, from the catalogues that their packages install."""

    Options = TranslationsOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return a hexadecimal digest of the content of both languages' translation catalogues."""
        return catalogues.digest(self._files())

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Yield sentences if catalogues of a language are missing, or if both languages are the
        same."""
        source, target = self.options.source_lang, self.options.target_lang
        if catalogues.language(source) == catalogues.language(target):
            yield f"data.source_lang and data.target_lang are both {source}; choose another one"
        for lang in (source, target):
            if not catalogues.is_english(lang) and not catalogues.files(lang, self.options.path):
                yield (
                    f"there are no translation catalogues of {lang} in "
                    f"{self.options.path or 'this system and its Python packages'}: install a "
                    "package that brings some, such as `pip install django`, or set data.path"
                )

    def _files(self) -> list[Any]:
        langs = (self.options.source_lang, self.options.target_lang)
        return [file for lang in langs for file in catalogues.files(lang, self.options.path)]

    def _dataset(self, run: Run) -> PairDataset:
        from accel_bench_text_tasks.data.text_pairs_impl import translations_of

        return translations_of(run, self.options)


RESERVED = 2
"""Number of reserved ids: padding and end."""

SUCCESSORS = 4
"""Number of tokens that can follow each token."""

RENAMING_STREAM = 3
"""Offset of the seed for the random permutation of tokens."""


class SyntheticPairs(Pairs[PairOptions]):
    """Seeded made-up tokens, and the same in another vocabulary, which a model can learn."""

    Options = PairOptions

    def _dataset(self, run: Run) -> PairDataset:
        """Return pairs of a random Markov chain of tokens and the same chain with renamed tokens.

        One permutation of the token ids renames all chains. Options, length and seed determine
        them. Each sequence has the maximum length.
        """
        import numpy as np

        from accel_bench.modeling.data.made_up import digest_of, markov_tokens
        from accel_bench_text_tasks.data.pairs_impl import PairDataset

        options, seed = self.options, run.scenario.data.seed
        length, ids = run.scenario.data.sequence_length, options.vocab_size - RESERVED
        generator, shape = np.random.default_rng(seed), (options.samples, length)
        made = markov_tokens(generator, ids, SUCCESSORS, shape).reshape(-1)
        renamed = np.random.default_rng((seed, RENAMING_STREAM)).permutation(ids).astype(np.uint32)
        starts, whole = np.arange(options.samples, dtype=np.int64) * length, len(made)
        ends = starts + length
        return PairDataset(
            tokens=np.concatenate((made, renamed[made])) + np.uint32(RESERVED),
            bounds=np.stack((starts, ends, starts + whole, ends + whole), axis=1),
            sequence_length=length,
            vocab_size=options.vocab_size,
            pad_token_id=0,
            fingerprint=digest_of(made.tobytes()),
            more_samples="raise data.samples",
        )
