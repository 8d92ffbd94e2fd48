"""The data plugin `text`: real documents, which are tokenized once and cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from accel_bench import Experiment, Run, hookimpl
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench.modeling.data.data_plugins import TokenData
from accel_bench.modeling.data.text_sources import home_path
from accel_bench.modeling.data.tokenizer_options import TokenizerOptions

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import Padding
    from accel_bench.modeling.data.token_batches import TokenDataset


class TextOptions(TokenizerOptions):
    """Options of the text's source, tokenization and division into samples."""

    source: Literal["stdlib", "path"] = "stdlib"
    """Source of the text: `stdlib`, the sources of Python's standard library; or `path`."""

    path: str | None = None
    """A .txt, .md, .py, .jsonl or .parquet file, or a folder of them, for the source `path`."""

    field: str = Field("text", min_length=1)
    """Key of a .jsonl line, or column of a .parquet file, that holds the text."""

    documents: Literal["files", "functions"] = "files"
    """Unit of a document: plain `files`, or `functions`, each function and method of a .py file, so
    that lengths differ as those of fine-tuning data do (an unparsable file stays whole)."""

    packing: bool = True
    """True to join documents and cut them into full samples; else each document is a sample."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Length to pad to without packing: `data.sequence_length`, or the micro-batch's longest."""

    maximum_documents: int | None = Field(None, ge=1)
    """Largest number of documents; null reads up to `limit_bytes`."""

    limit_bytes: int = Field(4_000_000, ge=1, le=10**13)
    """Largest number of bytes of text; the evidence tells if there are more (`limited`)."""

    @model_validator(mode="after")
    def _path_where_it_is_read(self) -> TextOptions:
        if self.source == "path" and self.path is None:
            raise ValueError("source: path needs `path`, a file or a folder")
        if self.source != "path" and self.path is not None:
            raise ValueError("`path` is only read with `source: path`")
        return self

    def files(self) -> list[text_sources.TextFile]:
        """Return the selected text files in order of names; an empty list if there are none.

        They are the files of `path`, or of the standard library, up to `limit_bytes`.
        """
        return self._files_up_to(self.limit_bytes)

    def leaves_files_out(self) -> bool:
        """Return whether the files exceed `limit_bytes`, so that some are left out or cut."""
        whole = self._files_up_to(1 << 62)
        return sum(file.size for file in whole) > sum(file.size for file in self.files())

    def _files_up_to(self, limit_bytes: int) -> list[text_sources.TextFile]:
        if self.path is None:
            return text_sources.stdlib_files(limit_bytes)
        return text_sources.path_files(home_path(self.path), limit_bytes)


class Text(TokenData[TextOptions]):
    """Real text: the standard library's sources, or files of yours; packed or padded."""

    Options = TextOptions

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return a digest of the text and of a pretrained tokenizer; None if there is no text."""
        if list(self.check_scenario(experiment)):
            return None
        return content_fingerprint(self.options.of_model(experiment))

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Return a reason if there is no text. Raises ScenarioError for an unusable file."""
        path = self.options.path
        if path is not None and (problem := text_sources.unusable(home_path(path))):
            raise ScenarioError(problem)
        self.options.of_model(experiment).check_tokenizer()
        if path is None and not self.options.files():
            return ["Python's standard library is not here as source; use `source: path`"]
        return []

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Tokenize the text into the cache, in a process that is not measured."""
        from accel_bench_huggingface import text_impl

        text_impl.tokenized(run, self.options.of_model(run))

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return the length of each document in tokens, also if documents are packed."""
        from accel_bench.modeling.data import token_batches
        from accel_bench_huggingface import text_impl

        return token_batches.kept_lengths(text_impl.tokenized(run, self.options.of_model(run)))

    @hookimpl
    def load_data(self, run: Run) -> TokenDataset:
        """Return the text's samples, mapped into memory; the text is tokenized at first use."""
        from accel_bench_huggingface import text_impl

        options = self.options.of_model(run)
        folder = text_impl.tokenized(run, options)
        dataset = text_impl.load(folder, options, run.scenario.data.sequence_length)
        run.on_evidence(lambda: text_impl.evidence(folder, dataset, options))
        return dataset

    def padding(self) -> Padding:
        """Return the padding mode in the options, or `none` for packed samples."""
        return "none" if self.options.packing else self.options.padding


def content_fingerprint(options: TextOptions) -> str:
    """Return a hexadecimal digest of the selected text and of a pretrained tokenizer."""
    beside = options.files_beside_tokenizer()
    more = text_sources.content_digest(beside) if beside else ""
    return text_sources.content_digest(options.files()) + options.tokenizer_digest() + more
