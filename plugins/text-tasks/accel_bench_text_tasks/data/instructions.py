"""The data plugin `instructions`: prompts and answers, with the loss on the answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import Field, model_validator

from accel_bench import Experiment, Plugin, Run, hookimpl
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench.modeling.data.data_plugins import TokenData
from accel_bench.modeling.data.text_sources import TextFile, content_digest, home_path
from accel_bench.modeling.data.tokenizer_options import TokenizerOptions, file_of
from accel_bench_text_tasks.data import row_sources, synthetic_rows

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import Padding
    from accel_bench.modeling.data.token_batches import TokenDataset

WITHOUT_LIMIT = 1 << 62
"""Number of bytes larger than any source of data."""

TEMPLATES = ("plain", "tokenizer")
"""Values of `chat_template` that do not name a file."""

FieldNames: TypeAlias = Annotated[tuple[str, ...], Field(strict=False)]
"""List of field names in a scenario file."""


class ConversationOptions(TokenizerOptions):
    """Options of `instructions` and `preferences`: rows with prompts, and their tokenization."""

    sample_name: ClassVar[str] = "prompt with an answer"
    """Description of a sample in error messages."""

    way_to_answers: ClassVar[str] = "raise it"
    """Advice on keeping truncated answers, a clause for error messages."""

    source: Literal["stdlib", "path", "synthetic"] = "stdlib"
    """Source of rows. `stdlib`: documented functions of Python's standard library; `path`: files of
    `path`; `synthetic`: words to be sorted, generated from `data.seed`."""

    path: str | None = None
    """File (.jsonl or .parquet), folder of such files, or folder saved by `datasets`."""

    split: str = Field("train", min_length=1)
    """Name of the split in a folder saved by `datasets` with several."""

    prompt: str | FieldNames = Field("prompt", min_length=1)
    """Name of the prompt's field; nonempty texts of several fields are joined by blank lines, and a
    row may lack some of them."""

    chat_template: str | None = Field(None, min_length=1)
    """Chat template. `plain`: built in; `tokenizer`: the one in the tokenizer's folder; or a Jinja
    file, as transformers reads it. null: for messages the tokenizer's template if it has one, else
    `plain`; prompts and answers are joined unchanged."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Length to pad to: `data.sequence_length`, or the longest of the micro-batch."""

    maximum_samples: int | None = Field(None, ge=1)
    """Maximum number of samples; null reads up to `limit_bytes`, and generates 2,048."""

    limit_bytes: int = Field(4_000_000, ge=1, le=10**13)
    """Maximum bytes of prompts and answers; the evidence tells if there are more (`limited`)."""

    @model_validator(mode="after")
    def _path_where_it_is_read(self) -> ConversationOptions:
        if self.source == "path" and self.path is None:
            raise ValueError("source: path needs `path`, a file or a folder")
        if self.source != "path" and self.path is not None:
            raise ValueError("`path` is only read with `source: path`")
        if self.chat_template == "tokenizer" and self.tokenizer == "train":
            raise ValueError("chat_template: tokenizer needs a folder or a hub id in `tokenizer`")
        return self

    @property
    def is_packed(self) -> bool:
        """True if samples are concatenated and cut into full sequences."""
        return False

    @property
    def learns_answers(self) -> bool:
        """True if the loss is on answer tokens only."""
        return True

    @property
    def prompts(self) -> tuple[str, ...]:
        """Names of the fields that make up the prompt."""
        return (self.prompt,) if isinstance(self.prompt, str) else self.prompt

    def files(self) -> list[TextFile]:
        """Return the selected files, ordered by name; an empty list for synthetic rows."""
        if self.source == "synthetic":
            return []
        if self.path is None:  # Of a source little is prompts and answers, which alone count.
            return text_sources.stdlib_files(WITHOUT_LIMIT)
        return row_sources.row_files(home_path(self.path), self.split, self.limit_bytes)

    def leaves_files_out(self) -> bool:
        """Return whether the files of `path` exceed `limit_bytes`, so that some are left out."""
        if self.path is None:
            return False
        root = home_path(self.path)
        whole = row_sources.row_files(root, self.split, WITHOUT_LIMIT)
        return sum(file.size for file in whole) > sum(file.size for file in self.files())

    @property
    def source_name(self) -> str:
        """Name of the source of rows, for error messages."""
        named = {"stdlib": "the standard library", "synthetic": "the synthetic rows"}
        return self.path or named[self.source]

    @property
    def more_samples(self) -> str:
        """Advice on getting more samples, a clause for error messages."""
        more = "raise data.maximum_samples" if self.source == "synthetic" else "bring more rows"
        return f"raise data.limit_bytes or data.sequence_length, or {more}"

    def template_path(self) -> Path | None:
        """Return the path of the chat template's file, or None if `chat_template` names no file."""
        named = self.chat_template is not None and self.chat_template not in TEMPLATES
        return home_path(self.chat_template or "") if named else None

    def content_fingerprint(self, seed: int) -> str:
        """Return a digest of the selected rows, the tokenizer and the template, in hexadecimal.

        Synthetic rows are determined by the seed.
        """
        template = self.template_path()
        files = self.files_beside_tokenizer()
        files += [file_of(template)] if template and template.is_file() else []
        more = content_digest(files) if files else ""
        made_up = synthetic_rows.rows_digest(seed) if self.source == "synthetic" else ""
        return (made_up or content_digest(self.files())) + self.tokenizer_digest() + more

    def check_files(self) -> Iterable[str]:
        """Return reasons why there is no row to read, or an empty list. Raises ScenarioError for
        options that name missing files."""
        if self.path is not None:
            problem = row_sources.unusable_rows(home_path(self.path), self.split)
            if problem:
                raise ScenarioError(problem)
        template = self.template_path()
        if template is not None and not template.is_file():
            raise ScenarioError(
                f"data.chat_template {str(template)!r} is no file; name a Jinja template, `plain`, "
                "or `tokenizer`"
            )
        self.check_tokenizer()
        if self.chat_template == "tokenizer" and self.tokenizer_folder() is None:
            raise ScenarioError(
                "data.chat_template: tokenizer needs a tokenizer of a folder or a hub; name one in "
                "data.tokenizer, or set data.chat_template: plain"
            )
        if self.source == "stdlib" and not self.files():
            return ["Python's standard library is not here as source; use `source: path`"]
        return []


class InstructionsOptions(ConversationOptions):
    """Options of `instructions`: fields of answers, supervised tokens, and packing."""

    way_to_answers: ClassVar[str] = "raise it, or set data.train_on: all"

    answer: str = Field("answer", min_length=1)
    """Name of the answer's field."""

    messages: str | None = Field(None, min_length=1)
    """Name of a field with messages in place of prompt and answer, each with `role` and `content`,
    or ShareGPT's `from` and `value`; messages of the role `assistant`, or `gpt`, are the
    answers."""

    train_on: Literal["answers", "all"] = "answers"
    """Supervised tokens: answers with their end tokens, or all. Samples are truncated to
    `data.sequence_length`; samples without a supervised token are left out."""

    packing: bool = False
    """True to concatenate samples and cut them into full sequences."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that are read from each row."""
        return (*self.prompts, self.answer) if self.messages is None else (self.messages,)

    @property
    def is_packed(self) -> bool:
        return self.packing

    @property
    def learns_answers(self) -> bool:
        return self.train_on == "answers"


ConversationOptionsT = TypeVar("ConversationOptionsT", bound=ConversationOptions)


class Conversations(Plugin[ConversationOptionsT]):
    """Base class of data plugins whose samples have prompts and answers."""

    _kind: str
    """Name of the plugin's folder in the cache."""

    _per_sample = 1
    """Number of sequences per sample."""

    def _impl(self) -> Any:
        """Return the module that reads the samples by a function `read(options, seed)`."""
        raise NotImplementedError

    def _dataset(self, sequences: TokenDataset) -> Any:
        """Return the dataset that is made of token sequences; here the sequences themselves."""
        return sequences

    def _tokenized(self, run: Run) -> tuple[ConversationOptionsT, Path]:
        """Return the options with defaults from the run's model, and the cache folder, which is
        filled if new."""
        from accel_bench_text_tasks.data.conversations_cache_impl import cached

        options = self.options.of_model(run)
        return options, cached(run, self._kind, options, self._impl().read)

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return a digest of rows, tokenizer and template, or None if the rows are unreadable."""
        if list(self.check_scenario(experiment)):
            return None
        options = self.options.of_model(experiment)
        return options.content_fingerprint(experiment.scenario.data.seed)

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Yield reasons why there is no row to read. Raises ScenarioError for options that name
        missing files."""
        return self.options.of_model(experiment).check_files()

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Render and tokenize the samples before the measurement, in a separate process."""
        self._tokenized(run)

    @hookimpl
    def load_data(self, run: Run) -> Any:
        """Return the dataset of memory-mapped tokens, after tokenizing the samples if necessary."""
        from accel_bench_text_tasks.data.conversations_cache_impl import load

        options, folder = self._tokenized(run)
        loaded = load(folder, options, run.scenario.data.sequence_length, self._per_sample)
        run.on_evidence(lambda: loaded.evidence(options, self._per_sample))
        return self._dataset(loaded.sequences)


class Instructions(Conversations[InstructionsOptions], TokenData[InstructionsOptions]):
    """Prompts with answers, or conversations by a chat template; the loss on the answers."""

    Options = InstructionsOptions
    tasks = frozenset({"causal-lm"})
    _kind = "instructions"

    def _impl(self) -> Any:
        from accel_bench_text_tasks.data import instructions_impl

        return instructions_impl

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return the number of tokens of each prompt with its answer, in the order of the
        samples."""
        from accel_bench.modeling.data import token_batches

        return token_batches.kept_lengths(self._tokenized(run)[1])

    def padding(self) -> Padding:
        """Return `none` for packed samples, or else the padding of the options."""
        return "none" if self.options.packing else self.options.padding
