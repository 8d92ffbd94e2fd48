"""Rendering of messages to text, and tokenization with a mask of answers."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import tokenizing
from accel_bench.modeling.data.token_batches import Flags, Tokens
from accel_bench_text_tasks.data.instructions import ConversationOptions
from accel_bench_text_tasks.data.row_sources import Message

ASSISTANT = "assistant"
"""Role whose messages are answers."""

MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Pattern of the Jinja block in which a template marks answers, as in transformers."""

PLAIN = (
    "{% for message in messages %}"
    "{{ message['role'] + ':\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)
"""Built-in chat template `plain`: each role on a separate line, so that no token spans role and
content, with the end-of-text token after each answer."""

TODAY = datetime(2026, 1, 1)
"""Fixed current date for templates, so that tokens do not depend on the day."""

DATE_FORMATS = "aAwdbBmyYHIMSpfjUWcxXGuV"
"""Allowed format letters of `strftime` in templates."""

TEXTS_AT_ONCE = 256
"""Number of texts tokenized in parallel."""

MOST_BYTES_OF_A_ROW = 1 << 30
"""Maximum additional bytes of memory for rendering one row."""


class Rendered(NamedTuple):
    """Text with the character spans of its answers."""

    text: str
    answers: tuple[tuple[int, int], ...]


class Encoded(NamedTuple):
    """Token ids of a text, and a mask of answer tokens, both of shape (tokens,)."""

    tokens: Tokens
    answers: Flags


@dataclass(frozen=True)
class Template:
    """Chat template with the special tokens that it uses."""

    source: str
    """Jinja source, as transformers renders it."""

    special_tokens: dict[str, str]
    """Texts of special tokens, by their names in templates, such as `eos_token`."""

    def render(
        self, messages: Sequence[Message], where: str, find_answers: bool = True
    ) -> Rendered:
        """Return messages as text with the character spans of the answers.

        `where` names the row in error messages. Without `find_answers`, only answers that the
        template marks have spans. Raises ScenarioError if the template fails, or if the text of a
        message depends on later messages.
        """
        with _limited_memory(MOST_BYTES_OF_A_ROW):
            if MARKS_ANSWERS.search(self.source):
                text, spans = self._rendered(messages, where, marked=True)
                return Rendered(text, tuple((int(first), int(last)) for first, last in spans))
            text, _ = self._rendered(messages, where)
            said = enumerate(messages) if find_answers else ()
            numbers = [number for number, message in said if message["role"] == ASSISTANT]
            return Rendered(text, tuple(self._span(messages, n, text, where) for n in numbers))

    def _span(
        self, messages: Sequence[Message], number: int, text: str, where: str
    ) -> tuple[int, int]:
        """Return the start and the end of an answer in `text`, as character indices.

        `text` is the rendering of all messages, and `number` the answer's index among them. `where`
        names the row in error messages.
        """
        before, _ = self._rendered(messages[:number], where, prompts=True)
        through, _ = self._rendered(messages[: number + 1], where)
        if not text.startswith(through) or not through.startswith(before):
            raise ScenarioError(
                f"{where}: the chat template renders message {number + 1} otherwise when more "
                "messages follow, so its tokens cannot be told apart; mark answers in the "
                "template with {% generation %} ... {% endgeneration %}, or let `instructions` "
                "learn all tokens: data.train_on: all"
            )
        return len(before), len(through)

    def _rendered(
        self,
        messages: Sequence[Message],
        where: str,
        marked: bool = False,
        prompts: bool = False,
    ) -> tuple[str, list[tuple[int, int]]]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                conversations=[list(messages)],
                chat_template=with_fixed_date(self.source),
                return_assistant_tokens_mask=marked,
                add_generation_prompt=prompts,
                **self.special_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ScenarioError(f"{where}: data.chat_template: {error}") from error
        except MemoryError:
            raise ScenarioError(
                f"{where}: data.chat_template: the template wants more than "
                f"{MOST_BYTES_OF_A_ROW:,} bytes for this row: it multiplies or pads a text"
            ) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError) as error:
            # Its frames are the template's own, thousands of them where it calls itself.
            named = f"{type(error).__name__}: {error}"
            raise ScenarioError(f"{where}: data.chat_template: {named}") from None
        return texts[0], spans[0] if spans else []


@contextlib.contextmanager
def _limited_memory(more: int) -> Iterator[None]:
    """Limit this process to `more` additional bytes of memory in the block, if the system can.

    A template is a program, which could otherwise use unlimited memory.
    """
    try:
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
    limit = min([used * resource.getpagesize() + more, *known])
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def render(
    template: Template | None,
    prompt: str | list[Message],
    answer: str | list[Message],
    where: str,
    find_answers: bool = True,
) -> Rendered:
    """Return the text of a prompt and an answer, with the answer's character spans.

    Without a template, both texts are joined unchanged. `where` names the row in error messages.
    Raises ScenarioError if the template fails, and for messages without a template.
    """
    if template is not None:
        messages = [*_turns(prompt, "user"), *_turns(answer, ASSISTANT)]
        return template.render(messages, where, find_answers)
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise ScenarioError(f"{where}: messages need a template; set data.chat_template: plain")
    return Rendered(prompt + answer, ((len(prompt), len(prompt) + len(answer)),))


def with_fixed_date(source: str) -> str:
    """Return a template's Jinja source in which the function `strftime_now` returns the date
    `TODAY`."""
    if "strftime_now" not in source:
        return source
    replaced = "".join(
        f"|replace('%{letter}', '{TODAY.strftime(f'%{letter}')}')" for letter in DATE_FORMATS
    )
    return f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro +%}}{source}"


def make_template(options: ConversationOptions, has_messages: bool) -> Template | None:
    """Return the chat template of the options, or None to join prompts and answers unchanged.

    `has_messages` is True if rows hold messages, which need a template. Raises ScenarioError if the
    named template is missing.
    """
    special, own = {"eos_token": options.end_of_text}, None
    if folder := options.tokenizer_folder():
        special, own = _saved_tokenizer(str(folder), special)
    source = _template_source(options, own, has_messages)
    return None if source is None else Template(source, special)


class Codec:
    """Tokenizer that also marks the tokens of answers."""

    def __init__(self, options: ConversationOptions, template: Template | None, texts: list[str]):
        """Load the tokenizer, or train it on `texts`. Raises ScenarioError if it cannot be loaded.

        Without a `template`, an end token follows each answer.
        """
        self.tokenizer = tokenizing.make_tokenizer(texts, options)
        end = options.end_of_text
        if folder := options.tokenizer_folder():
            end = _saved_tokenizer(str(folder), {"eos_token": end})[0]["eos_token"]
        self.end = tokenizing.end_of_text(
            self.tokenizer, options.model_copy(update={"end_of_text": end})
        )
        # A template ends answers itself, and names special tokens; in other text they are text.
        self._ends = [self.end] if template is None else []
        self.tokenizer.encode_special_tokens = template is None

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the tokenizer."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def pad_token_id(self) -> int:
        """Token id used for padding."""
        return tokenizing.pad_token(self.tokenizer, self.end)

    def encode(self, rendered: Sequence[Rendered]) -> list[Encoded]:
        """Return the token ids and the answer mask of each text.

        The mask includes tokens that overlap an answer only in part. Without a template, an end
        token follows each text and belongs to the answer.
        """
        results: list[Encoded] = []
        for first in range(0, len(rendered), TEXTS_AT_ONCE):
            some = rendered[first : first + TEXTS_AT_ONCE]
            encodings = self.tokenizer.encode_batch(
                [text.text for text in some], add_special_tokens=False
            )
            results += [self._encoded(*both) for both in zip(encodings, some, strict=True)]
        return results

    def _encoded(self, encoding: Any, rendered: Rendered) -> Encoded:
        tokens = np.array([*encoding.ids, *self._ends], dtype=np.uint32)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        # The offsets of a space may be cut to nothing: it stands where they begin.
        first, last = offsets[:, 0], np.maximum(offsets[:, 1], offsets[:, 0] + 1)
        flags = np.zeros(len(first), dtype=np.bool_)
        for begin, end in rendered.answers:
            flags |= (first < end) & (last > begin)
        return Encoded(tokens, np.append(flags, np.ones(len(self._ends), dtype=np.bool_)))


def _template_source(
    options: ConversationOptions, own: str | None, has_messages: bool
) -> str | None:
    """Return the template's Jinja source, or None to join prompts and answers unchanged.

    `own` is the template of the tokenizer's folder, or None. `has_messages` is True if rows hold
    messages. Raises ScenarioError if the named template is missing.
    """
    if path := options.template_path():
        try:
            return path.read_text(encoding="utf8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(f"data.chat_template {path}: cannot be read: {error}") from error
    if options.chat_template == "tokenizer" and own is None:
        raise ScenarioError(
            f"data.chat_template: {options.tokenizer_name()} has no chat template; use `plain`, or "
            "name a file"
        )
    if options.chat_template is None:
        return (own or PLAIN) if has_messages else None
    return PLAIN if options.chat_template == "plain" else own


def _saved_tokenizer(folder: str, special: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """Return the special tokens by name, and the chat template, of a tokenizer in a folder.

    The template is None if there is none. `special` has tokens that are used where the folder
    names none. Raises ScenarioError if transformers cannot load the tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        saved = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ScenarioError(f"data.tokenizer {folder}: cannot be loaded: {reason}") from error
    tokens = {key: value for key, value in saved.special_tokens_map.items() if type(value) is str}
    template = saved.chat_template
    if isinstance(template, dict):  # several by name, of which this is what messages take
        template = template.get("default")
    return {**special, **tokens}, template


def bytes_of(said: str | list[Message]) -> int:
    """Return the number of UTF-8 bytes of a text, or of the contents of messages."""
    texts = [said] if isinstance(said, str) else [str(message.get("content")) for message in said]
    return sum(len(text.encode(errors="ignore")) for text in texts)


def _turns(said: str | list[Message], role: str) -> list[Message]:
    return [{"role": role, "content": said}] if isinstance(said, str) else said
