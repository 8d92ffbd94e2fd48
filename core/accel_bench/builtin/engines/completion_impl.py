"""Ask a server for one completion: a stream that is read within limits, part by part."""

from __future__ import annotations

import http.client
import io
import json
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel_bench.builtin.engines.openai_endpoint import OpenAIEndpointOptions
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import Served, now, spread_evenly

KEPT_LETTERS = 300
"""Letters of a server's complaint that are shown."""

LEAST_SECONDS = 1e-3
"""Shortest wait for bytes: 0 would not wait at all."""

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
    """What the server calls its model."""

    said_tokens: int | None
    """Tokens that the server counted; None where it does not say."""

    cached_tokens: int | None = None
    """Tokens of the prompt that the server took from a cache; None if it does not say."""

    ids: list[int] = field(default_factory=list)
    """Token ids, where the server sends them."""

    has_ids: bool = True
    """Whether all parts came with their token ids."""

    finished: str = ""
    """Why the text ended, as the server says."""

    ended: bool = False
    """Whether the server has ended the stream, and not the connection."""

    parts: int = 0
    """Parts of the stream with text or tokens."""


class Limits(NamedTuple):
    """What one answer may have."""

    tokens: int
    """Tokens that were asked for."""

    until: float
    """When it must have ended."""

    token_seconds: float = 120.0
    """Longest wait for its next byte."""


class _Part(BaseModel):
    """Base of what is read of a part of a stream: other fields are left alone."""

    model_config = ConfigDict(strict=True)


class _Choice(_Part):
    """A piece of the text."""

    text: str | None = None
    token_ids: Any = None
    logprobs: Any = None
    finish_reason: str | None = None


class _PromptTokens(_Part):
    """What became of the tokens of the prompt, as OpenAI, vLLM and SGLang say it."""

    cached_tokens: int | None = Field(None, ge=0, le=LARGEST_ID)


class _Usage(_Part):
    """What the server has counted."""

    completion_tokens: Any = None
    prompt_tokens_details: _PromptTokens | None = None


class _Timings(_Part):
    """What llama.cpp says beside OpenAI's own fields."""

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


def ask(
    options: OpenAIEndpointOptions,
    body: dict[str, Any],
    prompt_tokens: int,
    arrival: float | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Completion:
    """Ask for one completion and read its stream, until `stopped`.

    Raises InvalidRunError, which names the address, where it is refused, takes too long, or is not
    what the API says.
    """
    served = Served(
        requests=1,
        prompt_tokens=prompt_tokens,
        started=now(),
        arrivals=() if arrival is None else (arrival,),
    )
    until = served.started + options.answer_seconds
    limits = Limits(int(body["max_tokens"]), until, options.timeout_seconds)
    try:
        with closing(_Connection(options.url, limits)) as connection:
            return _read_answer(connection, options.url, body, (served, limits, stopped))
    except InvalidRunError as error:
        raise InvalidRunError(f"{options.url}: {reason}" for reason in error.reasons) from None
    except TimeoutError:
        raise InvalidRunError([f"{options.url}: {_why_ended(options, until)}"]) from None


def _why_ended(options: OpenAIEndpointOptions, until: float) -> str:
    """Return which limit of time an answer has reached."""
    if now() >= until - LEAST_SECONDS:
        return (
            f"the server's answer takes too long: it has not ended after "
            f"{options.answer_seconds:g} s (engine.answer_seconds)"
        )
    return (
        f"the server was silent for {options.timeout_seconds:g} s in the middle of an answer "
        "(engine.timeout_seconds)"
    )


class _Connection(http.client.HTTPConnection):
    """A connection that ends at a moment, however slowly bytes drip from it."""

    def __init__(self, url: str, limits: Limits) -> None:
        self._limits, self.parts = limits, urlsplit(url)
        seconds = min(limits.token_seconds, max(LEAST_SECONDS, limits.until - now()))
        super().__init__(self.parts.hostname or "", self.parts.port or 80, timeout=seconds)

    def response_class(self, sock: socket.socket, **more: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        """Return the response to what was asked, whose every byte is waited for within limits."""
        return http.client.HTTPResponse(_Within(sock, self._limits), **more)  # type: ignore[arg-type]


class _Within(io.RawIOBase):
    """Bytes of a socket, each waited for no longer than the limits allow."""

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self._socket, self._limits = sock, limits
        self._bytes = sock.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        """Return the buffered file that a response reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what is there next. Raises TimeoutError at the limit."""
        left = self._limits.until - now()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(max(LEAST_SECONDS, min(left, self._limits.token_seconds)))
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        """Let go of the socket."""
        self._bytes.close()
        super().close()


def _read_answer(
    connection: _Connection,
    url: str,
    body: dict[str, Any],
    reading: tuple[Served, Limits, Callable[[], bool]],
) -> Completion:
    """Send a request, and return its answer. Raises InvalidRunError for what is no stream."""
    path = f"{connection.parts.path.rstrip('/')}/completions"
    content = json.dumps(body).encode()
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    try:
        with connection.getresponse() as response:
            if response.status != http.HTTPStatus.OK:
                raise InvalidRunError([_refusal(response)])
            return read_stream(response, *reading)
    except (http.client.HTTPException, ValueError) as error:
        reason = f"the server's answer is no HTTP: {type(error).__name__}: {_shown(str(error))}"
        raise InvalidRunError([reason]) from None


def _refusal(response: http.client.HTTPResponse) -> str:
    """Return what a server answers in the place of a stream."""
    target = response.getheader("Location") if 300 <= response.status < 400 else None
    if target:
        return (
            f"the server answered {response.status}, which sends requests on to {_shown(target)}: "
            "they are not followed; set engine.url to the address that answers"
        )
    return f"the server answered {response.status}: {_shown(_beginning(response))}"


def _beginning(response: http.client.HTTPResponse) -> str:
    """Return the beginning of a complaint, as far as it comes in time."""
    try:
        return response.read(KEPT_LETTERS).decode(errors="replace")
    except TimeoutError:
        return "and did not end saying why"


def _shown(text: str) -> str:
    """Return the beginning of what a server says, such that it can be stored."""
    return text[:KEPT_LETTERS].encode(errors="replace").decode()


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
    said = f"its field {where} is {_shown(repr(first['input']))}: {first['msg']}" if where else ""
    reason = said or f"it is no JSON: {_shown(first['msg'])}"
    raise InvalidRunError([f"a part of the server's stream is not what the API says; {reason}"])


def _take_event(completion: Completion, event: _Event, instant: float, limits: Limits) -> None:
    """Add what an event says. Raises InvalidRunError for an error."""
    if event.error:
        said = _shown(json.dumps(event.error))
        raise InvalidRunError([f"the server ended its stream with an error: {said}"])
    completion.model = _shown(event.model or completion.model)
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
        completion.finished, completion.ended = _shown(choice.finish_reason), True


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
            [f"the server sent the token id {_shown(str(wrong[0]))}: there is none"]
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
            [f"the server counted {_shown(str(said))} tokens, {limits.tokens:,} were asked"]
        )
    completion.said_tokens = said
    if not completion.has_ids and said > completion.parts:
        served.tokens = spread_evenly(served.tokens, said)
    return completion


def counted_tokens(answer: Completion, asked: int) -> int:
    """Return the tokens of an answer: never more than were asked for."""
    said = answer.said_tokens
    return min(answer.served.new_tokens if said is None else said, asked)
