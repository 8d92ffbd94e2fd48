"""Valid and invalid streams of a server, written by hand."""

from __future__ import annotations

import io
import json
from http.client import HTTPConnection
from typing import Any

import pytest
from accel_bench_inference.completion_impl import ask
from accel_bench_inference.completion_stream_impl import (
    MOST_BYTES_OF_A_LINE,
    Completion,
    StreamLimits,
    counted_tokens,
    read_stream,
)
from accel_bench_inference.openai_endpoint import OpenAIEndpointOptions
from accel_bench_inference.openai_endpoint_impl import EndpointEngine
from pydantic import ValidationError

from accel_bench import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import Served, now

DONE = "[DONE]"


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, **more}]}


def usage(tokens: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


def read(*events: Any, asked: int = 4, seconds: float = 60.0) -> Completion:
    """Read a stream of these events, for four requested tokens."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    content = "".join(f"data: {line}\n\n" for line in lines).encode()
    served = Served(1, 8, now())
    return read_stream(
        io.BytesIO(content), served, StreamLimits(asked, now() + seconds), lambda: False
    )


@pytest.mark.parametrize("said", [8, 0, -1, "4", True, 4.0])
def test_a_server_that_counts_other_tokens_than_it_can_have_generated_is_refused(said: Any) -> None:
    with pytest.raises(InvalidRunError, match=r"tokens, 4 were asked"):
        read(part("a"), part("b"), usage(said), DONE)


def test_tokens_are_those_that_the_server_counted_spread_over_its_parts() -> None:
    found = read(part("a"), part("bc"), usage(4), DONE)
    assert counted_tokens(found, 4) == 4
    assert [count for _, count in found.served.tokens] == [2, 2]
    assert found.parts == 2


def test_without_a_count_parts_are_tokens_and_never_more_than_were_asked_for() -> None:
    found = read(*[part("a")] * 9, DONE)
    assert counted_tokens(found, 4) == 4


def test_an_error_in_the_stream_is_no_answer() -> None:
    with pytest.raises(InvalidRunError, match="out of memory"):
        read(part("a"), {"error": {"message": "out of memory"}}, DONE)


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(InvalidRunError, match="broke off"):
        read(part("a"))
    assert read(part("a"), part("", finish_reason="length")).finished == "length"


def test_what_has_no_end_is_refused() -> None:
    with pytest.raises(InvalidRunError, match="not ended after"):
        read(*["x"] * 1000)
    with pytest.raises(InvalidRunError, match="too long"):
        read("x" * (MOST_BYTES_OF_A_LINE + 1))
    with pytest.raises(InvalidRunError, match="letters"):
        read(part("a" * 5000), DONE)
    with pytest.raises(InvalidRunError, match="too long"):
        read(part("a"), DONE, seconds=-1.0)


def test_token_ids_are_kept_where_the_server_sends_them() -> None:
    found = read(part("a", token_ids=[5, 6]), part("b", token_ids=[7]), usage(3), DONE)
    assert (found.has_ids, found.ids) == (True, [5, 6, 7])
    assert [count for _, count in found.served.tokens] == [2, 1]
    assert not read(part("a", token_ids=[5]), part("b"), DONE).has_ids


@pytest.mark.parametrize(
    "field", ["max_tokens", "prompt", "temperature", "stream", "model", "seed", "stop", "n"]
)
def test_a_stack_cannot_ask_for_something_else(field: str) -> None:
    with pytest.raises(ValidationError, match=rf"{field}: all stacks are asked for the same"):
        OpenAIEndpointOptions.model_validate({"extra": {field: 1}})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:99999/v1", "at most 65,535"),
        ("http://127.0.0.1:0/v1", "from 1 to"),
        ("http://127.0.0.1:8000/v1?key=1", "no query"),
        ("http://127.0.0.1@evil:8000/v1", "no user"),
    ],
)
def test_an_address_that_would_not_be_asked_as_written_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        OpenAIEndpointOptions.model_validate({"url": url})


def engine_of(make_run: Any, **inference: Any) -> EndpointEngine:
    asked = {"batch_size": 1, "prompt_tokens": 8, "new_tokens": 4, **inference}
    run = make_run(mode="inference", inference=asked, measure={"timeout_seconds": 60})
    run.batches = iter(())
    return EndpointEngine(run, OpenAIEndpointOptions())


def test_texts_that_end_early_degrade_the_run(make_run: Any) -> None:
    engine = engine_of(make_run)
    whole, cut = read(*[part("a")] * 4, DONE), read(part("a"), part("", finish_reason="stop"))
    engine._window = [whole, cut]
    found = engine._whole_answers()
    assert (found.value, found.degrades) == (0.5, True)
    assert "1 of 2 answers have other than 4 tokens (finish_reason: stop)" in found.reason
    engine._window = [whole]
    assert not engine._whole_answers().degrades


def test_text_without_ids_is_kept_as_letters(make_run: Any) -> None:
    engine = engine_of(make_run)
    engine._keep([read(part("ab"), DONE)])
    assert (engine._run.answers, engine._run.answer_unit) == ([(97, 98)], "letters")


def test_token_ids_beside_logprobs_are_read(make_run: Any) -> None:
    told = [part("a", logprobs={"content": [{"id": 5, "token": "a"}]}), part("b", token_ids=[7])]
    engine = engine_of(make_run)
    engine._keep([read(*told, part("", logprobs=None), DONE)])
    assert (engine._run.answers, engine._run.answer_unit) == ([[5, 7]], "tokens")


@pytest.mark.parametrize("logprobs", [None, [], {"content": None}, {"content": [{"id": "5"}]}])
def test_what_is_no_token_id_leaves_the_letters(make_run: Any, logprobs: Any) -> None:
    engine = engine_of(make_run)
    engine._keep([read(part("a", logprobs=logprobs), DONE)])
    assert (engine._run.answers, engine._run.answer_unit) == ([(97,)], "letters")


class Broken:
    """Data whose first batch cannot be made."""

    def __iter__(self) -> Broken:
        return self

    def __next__(self) -> Batch:
        raise RuntimeError("the data is broken")


def test_an_error_of_the_data_at_a_rate_is_told_at_once(
    make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(make_run, rate=100.0)
    monkeypatch.setattr(engine._prompts, "_rows", Broken())
    engine._start(engine._send_at_rate, 100.0)
    with pytest.raises(InvalidRunError, match="the data is broken"):
        engine._wait_for(0)


def test_of_a_complaint_only_what_is_shown_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Refusal(b"x" * 1_000_000)
    monkeypatch.setattr(HTTPConnection, "request", lambda *_: None)
    monkeypatch.setattr(HTTPConnection, "getresponse", lambda _: content)
    with pytest.raises(InvalidRunError, match=r"answered 500: x+$") as refused:
        ask(OpenAIEndpointOptions(), {"max_tokens": 4}, 8, None)
    assert len(str(refused.value)) < 1000
    assert content.most_read <= 300
    assert content.closed


class Refusal(io.BytesIO):
    """An error response that records how much of it was read."""

    status = 500
    most_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.most_read += len(found)
        return found
