"""Reader of a streamed completion, which records the arrival time of each part."""

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
"""Maximum characters of a server's error message that are stored."""

MOST_BYTES_OF_A_LINE = 1 << 20
"""Maximum bytes in a line of a stream."""

MOST_LETTERS_OF_A_TOKEN = 1000
"""Maximum characters of text per requested token."""

MOST_LINES_OF_A_TOKEN = 8
"""Maximum lines of a stream per requested token."""

LINES_BESIDE = 1000
"""Maximum further lines of a stream, such as keep-alive comments."""

LARGEST_ID = 2**63 - 1
"""Largest token id, the largest int64."""


@dataclass
class Completion:
    """Tokens and text of one request, as far as its stream has been read."""

    served: Served
    text: str
    model: str
    """Name of the model in the server's response."""

    said_tokens: int | None
    """Number of generated tokens that the server reports; None if it reports no number."""

    cached_tokens: int | None = None
    """Number of prompt tokens that the server took from a cache; None if it reports no number."""

    ids: list[int] = field(default_factory=list)
    """Generated token ids that the server sent; empty if it sends none."""

    has_ids: bool = True
    """True while every part of the stream so far has its token ids."""

    finished: str = ""
    """Reason that the server gives for the end of the text; empty without a reason."""

    ended: bool = False
    """True if the server ended the stream, false if the connection broke off."""

    parts: int = 0
    """Number of parts of the stream that have text or tokens."""


class StreamLimits(NamedTuple):
    """Time and size limits of one response."""

    tokens: int
    """Number of requested tokens."""

    until: float
    """Deadline of the whole response, in seconds of the clock `now()`."""

    token_seconds: float = 120.0
    """Maximum seconds of waiting for the next byte."""


class _StreamPart(BaseModel):
    """Base class of a stream's parts; unknown fields are ignored."""

    model_config = ConfigDict(strict=True)


class _Choice(_StreamPart):
    """Piece of the generated text: one entry of an event's `choices`."""

    text: str | None = None
    token_ids: Any = None
    logprobs: Any = None
    finish_reason: str | None = None


class _PromptTokens(_StreamPart):
    """Details of the prompt's token count, as OpenAI, vLLM and SGLang send them."""

    cached_tokens: int | None = Field(None, ge=0, le=LARGEST_ID)


class _Usage(_StreamPart):
    """Token counts that the server sends as `usage`."""

    completion_tokens: Any = None
    prompt_tokens_details: _PromptTokens | None = None


class _Timings(_StreamPart):
    """Token counts that llama.cpp sends in addition to OpenAI's fields."""

    cache_n: int | None = Field(None, ge=0, le=LARGEST_ID)


class _Event(_StreamPart):
    """One event of a stream, parsed from JSON."""

    error: Any = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Number of prompt tokens from a cache; None if the event does not report it."""
        details = self.usage.prompt_tokens_details if self.usage else None
        said = details.cached_tokens if details else None
        return said if said is not None or self.timings is None else self.timings.cache_n


def read_stream(
    response: BinaryIO | http.client.HTTPResponse,
    served: Served,
    limits: StreamLimits,
    stopped: Callable[[], bool],
) -> Completion:
    """Read a stream to its end, and return its completion with the arrival times of its parts.

    `served` gets these times. Raises InvalidRunError for a stream that breaks off, reports an
    error, or exceeds its limits.
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
    """Return an event parsed from JSON.

    Raises InvalidRunError, which names an invalid field, if this fails.
    """
    try:
        return _Event.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    said = f"its field {where} is {shown(repr(first['input']))}: {first['msg']}" if where else ""
    reason = said or f"it is no JSON: {shown(first['msg'])}"
    raise InvalidRunError([f"a part of the server's stream is not what the API says; {reason}"])


def _take_event(
    completion: Completion, event: _Event, instant: float, limits: StreamLimits
) -> None:
    """Add the content of an event, received at `instant`, to the completion.

    Raises InvalidRunError if the event reports an error, or if text or tokens exceed the limits.
    """
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
    """Add a part's text or tokens to the completion, and why the text ended if the part says so.

    `instant` is the part's arrival time in seconds of the clock `now()`.
    """
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
    """Return the token ids of a part: vLLM's `token_ids`, or those in llama.cpp's `logprobs`.

    Returns None if the part has none. The ids are not checked yet.
    """
    if choice.token_ids is not None:
        return choice.token_ids
    told = choice.logprobs
    content = told.get("content") if isinstance(told, dict) else None
    if not isinstance(content, list):
        return None
    return [entry.get("id") if isinstance(entry, dict) else None for entry in content]


def _are_ids(ids: Any) -> bool:
    """Return whether a value is a nonempty list of integers.

    Raises InvalidRunError for an integer that cannot be a token id.
    """
    if not ids or not isinstance(ids, list) or any(type(token) is not int for token in ids):
        return False
    if wrong := [token for token in ids if not 0 <= token <= LARGEST_ID]:
        raise InvalidRunError(
            [f"the server sent the token id {shown(str(wrong[0]))}: there is none"]
        )
    return True


def _checked(completion: Completion, limits: StreamLimits) -> Completion:
    """Check a completion that was read to its end, and return it with its token counts.

    Raises InvalidRunError if it broke off, has no text, or has more tokens than requested.
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
    """Return the number of generated tokens of a completion, at most the `asked` number."""
    said = answer.said_tokens
    return min(answer.served.new_tokens if said is None else said, asked)


def shown(text: str) -> str:
    """Return the first 300 characters of a server's message, invalid ones replaced by `?`."""
    return text[:KEPT_LETTERS].encode(errors="replace").decode()
