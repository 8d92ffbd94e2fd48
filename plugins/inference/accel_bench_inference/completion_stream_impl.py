"""Read the stream of a completion within limits, and note when each part of it arrives."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import Served, now, spread_evenly

KEPT_LETTERS = 300
"""Letters of a server's complaint that are shown."""

MOST_BYTES_OF_A_LINE = 1 << 20
"""Longest line of a stream that is read."""

MOST_LETTERS_OF_A_TOKEN = 1000
"""Letters that a text may have for each token that was asked for."""

MOST_LINES_OF_A_TOKEN = 8
"""Lines that a stream may have for each token that was asked for."""

LINES_BESIDE = 1000
"""Lines that a stream may have beside those of its tokens, such as comments that keep it alive."""

LARGEST_ID = 2**63 - 1
"""Largest token id: torch's own are no larger."""


@dataclass
class Completion:
    """One answered request."""

    served: Served
    text: str
    model: str
    """Name that the server gives its model."""

    said_tokens: int | None
    """Tokens that the server counted; None where it does not say."""

    cached_tokens: int | None = None
    """Tokens of the prompt that the server took from a cache; None if it does not say."""

    ids: list[int] = field(default_factory=list)
    """Token ids, where the server sends them."""

    has_ids: bool = True
    """True while every part has come with its token ids."""

    finished: str = ""
    """Reason that the server gives for the end of the text; empty if it gives none."""

    ended: bool = False
    """True if the server has ended the stream; a lost connection does not."""

    parts: int = 0
    """Parts of the stream with text or tokens."""


class Limits(NamedTuple):
    """Limits of one answer."""

    tokens: int
    """Tokens that were asked for."""

    until: float
    """Clock of `now()` by which it must have ended."""

    token_seconds: float = 120.0
    """Seconds of the longest wait for its next byte."""


class _Part(BaseModel):
    """Base of the parts of a stream; fields that it does not name are ignored."""

    model_config = ConfigDict(strict=True)


class _Choice(_Part):
    """A piece of the text."""

    text: str | None = None
    token_ids: Any = None
    logprobs: Any = None
    finish_reason: str | None = None


class _PromptTokens(_Part):
    """Details of the prompt's tokens, as OpenAI, vLLM and SGLang give them."""

    cached_tokens: int | None = Field(None, ge=0, le=LARGEST_ID)


class _Usage(_Part):
    """Counts of the server."""

    completion_tokens: Any = None
    prompt_tokens_details: _PromptTokens | None = None


class _Timings(_Part):
    """Counts of llama.cpp beside OpenAI's own fields."""

    cache_n: int | None = Field(None, ge=0, le=LARGEST_ID)


class _Event(_Part):
    """One part of a stream."""

    error: Any = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that came from a cache; None if this part does not say."""
        details = self.usage.prompt_tokens_details if self.usage else None
        said = details.cached_tokens if details else None
        return said if said is not None or self.timings is None else self.timings.cache_n


def read_stream(
    response: BinaryIO | http.client.HTTPResponse,
    served: Served,
    limits: Limits,
    stopped: Callable[[], bool],
) -> Completion:
    """Read the events of a stream to its end, and note when those with text come.

    Raises InvalidRunError for a stream that breaks off, says an error, or has no end.
    """
    completion = Completion(served, "", "", None)
    most = LINES_BESIDE + MOST_LINES_OF_A_TOKEN * limits.tokens
    for _ in range(most):
        line = response.readline(MOST_BYTES_OF_A_LINE + 1)
        instant = now()
        content = line.strip().removeprefix(b"data:").strip()
        if not line or content == b"[DONE]" or stopped():
            completion.ended = completion.ended or bool(line)
            break
        if len(line) > MOST_BYTES_OF_A_LINE or instant > limits.until:
            raise InvalidRunError(["the server's answer is too long, or takes too long"])
        if content.startswith(b"{"):
            _take_event(completion, _event_of(content), instant, limits)
    else:
        raise InvalidRunError([f"the server's stream has not ended after {most:,} lines"])
    return _checked(completion, limits)


def _event_of(content: bytes) -> _Event:
    """Return a part of a stream. Raises InvalidRunError that names the field which is wrong."""
    try:
        return _Event.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    said = f"its field {where} is {shown(repr(first['input']))}: {first['msg']}" if where else ""
    reason = said or f"it is no JSON: {shown(first['msg'])}"
    raise InvalidRunError([f"a part of the server's stream is not what the API says; {reason}"])


def _take_event(completion: Completion, event: _Event, instant: float, limits: Limits) -> None:
    """Add what an event says. Raises InvalidRunError for an error."""
    if event.error:
        said = shown(json.dumps(event.error))
        raise InvalidRunError([f"the server ended its stream with an error: {said}"])
    completion.model = shown(event.model or completion.model)
    if event.usage:
        completion.said_tokens = event.usage.completion_tokens
    if event.cached_tokens is not None:
        completion.cached_tokens = event.cached_tokens
    for choice in event.choices or ():
        _take_choice(completion, choice, instant)
    if len(completion.text) > MOST_LETTERS_OF_A_TOKEN * limits.tokens:
        raise InvalidRunError([f"the server's text has {len(completion.text):,} letters"])
    if len(completion.ids) > limits.tokens:
        raise InvalidRunError(
            [f"the server sent {len(completion.ids):,} token ids, {limits.tokens:,} were asked"]
        )


def _take_choice(completion: Completion, choice: _Choice, instant: float) -> None:
    """Add the text or the tokens of a part, and why the text ended."""
    text, ids = choice.text or "", _ids_of(choice)
    if text or ids:
        known = _are_ids(ids)
        completion.has_ids = completion.has_ids and known
        completion.ids += ids if known else ()
        completion.served.tokens.append((instant, len(ids) if known else 1))
        completion.text += text
    if choice.finish_reason:
        completion.finished, completion.ended = shown(choice.finish_reason), True


def _ids_of(choice: _Choice) -> Any:
    """Return the token ids of a part, as vLLM sends them, or as llama.cpp does beside logprobs."""
    if choice.token_ids is not None:
        return choice.token_ids
    told = choice.logprobs
    content = told.get("content") if isinstance(told, dict) else None
    if not isinstance(content, list):
        return None
    return [one.get("id") if isinstance(one, dict) else None for one in content]


def _are_ids(ids: Any) -> bool:
    """Return whether this is a list of token ids. Raises InvalidRunError for impossible numbers."""
    if not ids or not isinstance(ids, list) or any(type(one) is not int for one in ids):
        return False
    if wrong := [one for one in ids if not 0 <= one <= LARGEST_ID]:
        raise InvalidRunError(
            [f"the server sent the token id {shown(str(wrong[0]))}: there is none"]
        )
    return True


def _checked(completion: Completion, limits: Limits) -> Completion:
    """Return an answer that was read to its end, its parts with the tokens that came in each.

    Raises InvalidRunError for one that broke off, or that claims more than was asked for.
    """
    served, said = completion.served, completion.said_tokens
    if not served.tokens:
        raise InvalidRunError(["the server's answer has no text"])
    if not completion.ended:
        raise InvalidRunError(
            ["the server's stream broke off: it has neither [DONE] nor a finish_reason"]
        )
    completion.parts = len(served.tokens)
    if completion.has_ids and completion.ids:
        said = len(completion.ids)
    if said is None:
        return completion
    if type(said) is not int or not 1 <= said <= limits.tokens:
        raise InvalidRunError(
            [f"the server counted {shown(str(said))} tokens, {limits.tokens:,} were asked"]
        )
    completion.said_tokens = said
    if not completion.has_ids and said > completion.parts:
        served.tokens = spread_evenly(served.tokens, said)
    return completion


def counted_tokens(answer: Completion, asked: int) -> int:
    """Return the tokens of an answer: never more than were asked for."""
    said = answer.said_tokens
    return min(answer.served.new_tokens if said is None else said, asked)


def shown(text: str) -> str:
    """Return the beginning of what a server says, such that it can be stored."""
    return text[:KEPT_LETTERS].encode(errors="replace").decode()
