"""The data plugins of pairs: `docstrings`, `translations`, `synthetic-pairs`."""

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
    """Options that all data of pairs have."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Pad to `data.sequence_length`, or to the longest of the micro-batch."""

    vocab_size: int = Field(2048, ge=262, le=10_000_000)
    """Largest vocabulary; at most that of the model."""

    samples: int = Field(4096, ge=1, le=10_000_000)
    """Most pairs of an epoch."""


OptionsT = TypeVar("OptionsT", bound=PairOptions)


class Pairs(SampleData[OptionsT]):
    """Base of data plugins of pairs: `_dataset` makes them."""

    @hookimpl
    def load_data(self, run: Run) -> PairDataset:
        """Make or map the pairs."""
        from accel_bench_text_tasks.data import pairs_impl

        dataset = self._dataset(run)
        run.on_evidence(lambda: pairs_impl.evidence(dataset, self.options.padding))
        return dataset

    def padding(self) -> Padding:
        """Return the padding of the options."""
        return self.options.padding

    def collate(self, run: Run, plan: BatchPlan) -> Collate:
        """Return what makes batches in the form that the task reads."""
        from accel_bench_text_tasks.data import pairs_impl

        return pairs_impl.collate_of(run, plan)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
        """Return pairs of which both sequences are as long as they may be."""
        from accel_bench_text_tasks.data import pairs_impl

        return pairs_impl.simulated_batch(run, micro_batch_size, sequence_length)

    def _dataset(self, run: Run) -> Any:
        raise NotImplementedError


class TextPairs(Pairs[OptionsT]):
    """Base of data plugins of pairs of texts, which are tokenized once."""

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Tokenize in a process that is not measured."""
        self._dataset(run)


class DocstringsOptions(PairOptions):
    """Which functions, and what stands before both texts."""

    limit_bytes: int = Field(2_000_000, ge=1, le=10**13)
    """Read no more bytes of sources than this."""

    query_prefix: str = "query: "
    """Text before each docstring, as E5 has it."""

    passage_prefix: str = "passage: "
    """Text before each function."""


class Docstrings(TextPairs[DocstringsOptions]):
    """Pairs of a docstring and its function, from the sources of Python's standard library."""

    Options = DocstringsOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return a digest of the sources."""
        return text_sources.content_digest(text_sources.stdlib_files(self.options.limit_bytes))

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Check that there are sources."""
        if not text_sources.stdlib_files(self.options.limit_bytes):
            yield "Python's standard library is not here as source; use other data"

    def _dataset(self, run: Run) -> PairDataset:
        from accel_bench_text_tasks.data.text_pairs_impl import functions_of

        return functions_of(run, self.options)


class TranslationsOptions(PairOptions):
    """Which languages, and where their catalogues are."""

    source_lang: str = Field("eng", pattern=r"^[A-Za-z]{2,3}([_@-][A-Za-z]+)*$")
    """Language to translate from: its code in ISO 639, such as `eng`, `fra` or `pt_BR`."""

    target_lang: str = Field("fra", pattern=r"^[A-Za-z]{2,3}([_@-][A-Za-z]+)*$")
    """Language to translate to."""

    path: str | None = None
    """Folder of gettext's catalogues, `LANG/LC_MESSAGES/*.mo`; null: those of this system and of
    the installed Python packages."""


class Translations(TextPairs[TranslationsOptions]):
    """Sentences of programs in two languages, from the catalogues that their packages install."""

    Options = TranslationsOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return a digest of the catalogues of both languages."""
        return catalogues.digest(self._files())

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Check that there are catalogues of both languages."""
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
        return [one for lang in langs for one in catalogues.files(lang, self.options.path)]

    def _dataset(self, run: Run) -> PairDataset:
        from accel_bench_text_tasks.data.text_pairs_impl import translations_of

        return translations_of(run, self.options)


RESERVED = 2
"""Ids that no pair has: those of padding and of the end."""

SUCCESSORS = 4
"""Tokens that can follow each token."""

RENAMING_STREAM = 3
"""Added to the seed for the permutation."""


class SyntheticPairs(Pairs[PairOptions]):
    """Seeded made-up tokens, and the same in another vocabulary, which a model can learn."""

    Options = PairOptions

    def _dataset(self, run: Run) -> PairDataset:
        """Walk a random first-order Markov chain, and rename its tokens by a permutation.

        Options, length and seed alone decide; each side is as long as it may be.
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
