"""Client for one streamed completion of a server, with strict time limits."""

from __future__ import annotations

import http.client
import io
import json
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import Served, now
from accel_bench_inference.completion_stream_impl import (
    KEPT_LETTERS,
    Completion,
    StreamLimits,
    read_stream,
    shown,
)
from accel_bench_inference.openai_endpoint import OpenAIEndpointOptions

LEAST_SECONDS = 1e-3
"""Minimum socket timeout in seconds, since a timeout of 0 would not block at all."""


def ask(
    options: OpenAIEndpointOptions,
    body: dict[str, Any],
    prompt_tokens: int,
    arrival: float | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Completion:
    """Request one completion and read its stream to the end, or until `stopped()` is true.

    `body` is the JSON request. `arrival` is the request's arrival time in seconds of the clock
    `now()`; None if the scenario sets no rate. Raises InvalidRunError with the address for a
    refused, late, lost or invalid response.
    """
    served = Served(
        requests=1,
        prompt_tokens=prompt_tokens,
        started=now(),
        arrivals=() if arrival is None else (arrival,),
    )
    until = served.started + options.answer_seconds
    limits = StreamLimits(int(body["max_tokens"]), until, options.timeout_seconds)
    try:
        with closing(_Connection(options.url, limits)) as connection:
            return _read_answer(connection, body, (served, limits, stopped))
    except InvalidRunError as error:
        raise InvalidRunError(f"{options.url}: {reason}" for reason in error.reasons) from None
    except TimeoutError:
        raise InvalidRunError([f"{options.url}: {_why_ended(options, until)}"]) from None
    except OSError as error:
        reason = f"the connection to the server failed: {type(error).__name__}: {error}"
        raise InvalidRunError([f"{options.url}: {reason}"]) from None


def _why_ended(options: OpenAIEndpointOptions, until: float) -> str:
    """Return the error message of a timeout, which names the limit that was exceeded.

    `until` is the deadline of the whole response, in seconds of the clock `now()`.
    """
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
    """HTTP connection with a deadline for the whole response, even if each byte arrives in time."""

    def __init__(self, url: str, limits: StreamLimits) -> None:
        self._limits, self.parts = limits, urlsplit(url)
        seconds = min(limits.token_seconds, max(LEAST_SECONDS, limits.until - now()))
        super().__init__(self.parts.hostname or "", self.parts.port or 80, timeout=seconds)

    def response_class(self, sock: socket.socket, **more: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        """Return an HTTP response whose reads respect the time limits."""
        return http.client.HTTPResponse(_Within(sock, self._limits), **more)  # type: ignore[arg-type]


class _Within(io.RawIOBase):
    """Raw file of a socket's bytes; reading it after the deadline raises TimeoutError."""

    def __init__(self, sock: socket.socket, limits: StreamLimits) -> None:
        self._socket, self._limits = sock, limits
        self._bytes = sock.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        """Return the buffered file that HTTPResponse reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True, since the file is open for reading."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read bytes into `buffer`; return their number, 0 at the end, or None if no byte is ready.

        Raises TimeoutError at the time limit.
        """
        left = self._limits.until - now()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(max(LEAST_SECONDS, min(left, self._limits.token_seconds)))
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        """Close the socket's file."""
        self._bytes.close()
        super().close()


def _read_answer(
    connection: _Connection,
    body: dict[str, Any],
    reading: tuple[Served, StreamLimits, Callable[[], bool]],
) -> Completion:
    """Send a request, and return its completion. Raises InvalidRunError for an invalid response.

    `body` is the JSON request. `reading` holds three arguments of `read_stream`: `served`, `limits`
    and `stopped`.
    """
    path = f"{connection.parts.path.rstrip('/')}/completions"
    content = json.dumps(body).encode()
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    try:
        with connection.getresponse() as response:
            if response.status != http.HTTPStatus.OK:
                raise InvalidRunError([_refusal(response)])
            return read_stream(response, *reading)
    except (http.client.HTTPException, ValueError) as error:
        reason = f"the server's answer is no HTTP: {type(error).__name__}: {shown(str(error))}"
        raise InvalidRunError([reason]) from None


def _refusal(response: http.client.HTTPResponse) -> str:
    """Return an error message for a response whose status is not 200."""
    target = response.getheader("Location") if 300 <= response.status < 400 else None
    if target:
        return (
            f"the server answered {response.status}, which sends requests on to {shown(target)}: "
            "they are not followed; set engine.url to the address that answers"
        )
    return f"the server answered {response.status}: {shown(_beginning(response))}"


def _beginning(response: http.client.HTTPResponse) -> str:
    """Return the beginning of an error response's body, or a note if it arrives too late."""
    try:
        return response.read(KEPT_LETTERS).decode(errors="replace")
    except TimeoutError:
        return "and did not end saying why"
