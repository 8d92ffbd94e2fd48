"""Behaviour of a server on a real socket, and its error messages: `completion_impl`."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accel_bench_inference.completion_impl import ask
from accel_bench_inference.completion_stream_impl import Completion
from accel_bench_inference.openai_endpoint import OpenAIEndpointOptions

from accel_bench.errors import InvalidRunError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'

DRIPPED_BYTES = 150
"""Bytes after which a slow server ends the connection, so that a test ends."""


def drips(before: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Return a server that sends a beginning, and then single bytes with pauses."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(before)
        for _ in range(DRIPPED_BYTES):
            connection.sendall(drop)
            time.sleep(0.02)

    return serve


def sends(content: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(content)


def streams(*events: Any) -> Callable[[socket.socket], None]:
    """Return a server that answers with these parts, and ends its stream."""
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in events]
    return sends(HEAD + b"".join(b"data: " + line + b"\n\n" for line in [*lines, b"[DONE]"]))


@contextlib.contextmanager
def serving(behaviour: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of a server that reads one request and then behaves as given."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            request = connection.recv(1 << 16)
            while not request.endswith(b"}"):  # a body follows: what stays unread resets it
                request += connection.recv(1 << 16) or b"}"
            behaviour(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread.join()


def asked(behaviour: Callable[[socket.socket], None], **options: Any) -> Completion:
    with serving(behaviour) as url:
        given = OpenAIEndpointOptions.model_validate({"url": url, **options})
        return ask(given, {"max_tokens": 4, "prompt": [1, 2]}, 2, None)


@pytest.mark.parametrize(
    ("before", "drop"),
    [
        pytest.param(b"", b"H", id="status"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"X", id="header"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="continue"),
        pytest.param(HEAD, b":", id="comment"),
        pytest.param(HEAD + EVENT, b"d", id="part"),
        pytest.param(HEAD + EVENT, EVENT[:-2] + b" ", id="spaces"),
    ],
)
def test_a_server_that_drips_ends_at_the_time_of_an_answer(before: bytes, drop: bytes) -> None:
    with pytest.raises(InvalidRunError, match=r"^http://127.*v1: .*engine.answer_seconds"):
        asked(drips(before, drop), answer_seconds=0.3)


def test_a_complaint_that_drips_is_still_told() -> None:
    head = b"HTTP/1.1 503 Busy\r\n\r\n"
    with pytest.raises(InvalidRunError, match=r"v1: the server answered 503: .*did not end"):
        asked(drips(head, b"w"), answer_seconds=0.3)


def test_a_silent_server_is_named_with_the_limit_that_it_reached() -> None:
    with pytest.raises(InvalidRunError, match=r"v1: .*silent for 0.1 s.*engine.timeout_seconds"):
        asked(drips(HEAD, b""), timeout_seconds=0.1)


def test_a_connection_that_is_reset_in_an_answer_is_said() -> None:
    def resets(connection: socket.socket) -> None:
        connection.sendall(HEAD + EVENT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with pytest.raises(InvalidRunError, match=r"v1: the connection.* failed: ConnectionReset"):
        asked(resets)


def test_a_redirect_is_said_and_not_followed() -> None:
    answer = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/v2\r\n\r\n"
    with pytest.raises(InvalidRunError, match=r"answered 307.*http://127.0.0.1:9/v2.*engine.url"):
        asked(sends(answer))


def test_what_is_no_http_is_named() -> None:
    with pytest.raises(InvalidRunError, match="v1: the server's answer is no HTTP: "):
        asked(sends(b"SSH-2.0-x\r\n"))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"choices": 5}, "field choices is 5"),
        ({"choices": [1]}, "field choices.0 is 1"),
        ({"choices": [{"text": ["a"]}]}, "field choices.0.text is ['a']"),
        ({"choices": [{"finish_reason": 1}]}, "field choices.0.finish_reason is 1"),
        ({"model": {}}, "field model is {}"),
        ({"usage": "4"}, "field usage is '4'"),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": -1}}}, "cached_tokens is -1"),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 10**60}}}, "cached_tokens is 1000"),
        ({"choices": [{"text": "a", "token_ids": [10**100]}]}, "the token id 1000"),
        ({"choices": [{"text": "a", "token_ids": [-1]}]}, "the token id -1"),
        ({"choices": [{"text": "a", "token_ids": [1] * 5}]}, "5 token ids, 4 were asked"),
        ({"usage": {"completion_tokens": [4]}}, "counted [4] tokens"),
        (b'{"choices": ', "it is no JSON"),
        (b'{"choices": ' + b"[" * 100_000, "it is no JSON"),
        (b'{"model": "\\ud800"}', "it is no JSON"),
        (b'{"usage": {"completion_tokens": ' + b"9" * 10_000 + b"}}", "it is no JSON"),
    ],
)
def test_wrong_types_are_the_servers_error_and_name_the_field(event: Any, said: str) -> None:
    with pytest.raises(InvalidRunError) as refused:
        asked(streams({"choices": [{"text": "a"}]}, event))
    assert said in str(refused.value) and str(refused.value).startswith("http://127.0.0.1:")


def test_other_fields_and_nulls_are_left_alone() -> None:
    more = {"id": "x", "created": 5, "usage": None, "system_fingerprint": None}
    choice = {"text": "a", "index": 0, "logprobs": None, "finish_reason": None, "token_ids": None}
    found = asked(streams({"choices": [choice], **more}, {"choices": None, "error": None}))
    assert (found.text, found.has_ids, found.cached_tokens) == ("a", False, None)


@pytest.mark.parametrize(
    "said",
    [
        {"usage": {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}}},
        {"timings": {"cache_n": 5, "prompt_n": 1, "prompt_ms": 1.5}},
    ],
)
def test_tokens_from_a_cache_are_read_as_openai_and_llama_cpp_say_them(said: Any) -> None:
    assert asked(streams({"choices": [{"text": "a"}]}, {"choices": [], **said})).cached_tokens == 5
