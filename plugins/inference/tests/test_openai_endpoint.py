"""The engine `openai-endpoint` against a real server of a small model, in the standard library."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from accel_bench import testing
from accel_bench.modeling.loading import load_base_model
from accel_bench.result import Result

PLANTED_SECONDS = 0.02
"""Planted sleep in seconds before each token."""

FIRST_LETTER = 0x4E00
"""Letter of token 0: each token is one letter, so that texts identify tokens."""

MODEL = {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1, "hidden_size": 64}}

SCENARIO = """
mode: inference
model: {{id: tiny-llama-cpu}}
data: {{samples: 64}}
inference: {{batch_size: 2, prompt_tokens: 6, new_tokens: 4, {more}}}
engine: {{use: openai-endpoint, url: "{url}"}}
measure: {{warmup: 1, steps: 4, rounds: 1, phase_steps: 0}}
"""


class Server(ThreadingHTTPServer):
    """A server that ends with its requests; computing while Python exits would abort it."""

    daemon_threads = False


class Handler(BaseHTTPRequestHandler):
    """Answers `/v1/completions` with greedy tokens of a model, one event for each."""

    model: ClassVar[Any]
    other: ClassVar[bool] = False
    """True to answer differently from the model."""

    boast: ClassVar[int] = 1
    """Reported number of tokens for each real one."""

    ids: ClassVar[bool] = False
    """True to send token ids beside the text."""

    alone = threading.Lock()
    """Lock that computes one token at a time, as on one device."""

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] == "unknown":
            self.send_error(404, "no such model")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        ids = torch.tensor([asked["prompt"]])
        for _ in range(asked["max_tokens"]):
            with self.alone:
                time.sleep(PLANTED_SECONDS)
                with torch.no_grad():
                    token = self.model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
            ids = torch.cat([ids, token.reshape(1, 1)], dim=1)
            letter = chr(FIRST_LETTER + int(token) + self.other)
            more = {"token_ids": [int(token)]} if self.ids else {}
            self._send({"choices": [{"text": letter, **more}], "model": "tiny"})
        usage = {"completion_tokens": asked["max_tokens"] * self.boast}
        self._send({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that answers until the tests of this file are over."""
    run = testing.make_run(tmp_path_factory.mktemp("model"), {"model": MODEL})
    Handler.model = load_base_model(run).eval()
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def measured(url: str, tmp_path: Path) -> Callable[..., Result]:
    """Return `measured(more, **settings)`: the run of the only stack."""

    def run(more: str = "seed: 0", **settings: Any) -> Result:
        path = tmp_path / "served.yaml"
        path.write_text(SCENARIO.format(url=url, more=more))
        (result,) = testing.run_scenario(path, settings=settings).values()
        return result

    return run


def metrics_of(result: Result) -> dict[str, float]:
    return {one.name: one.value for one in result.ranks[0].metrics if one.value is not None}


def test_latencies_are_those_of_the_stream_and_the_text_is_kept(
    measured: Callable[..., Result],
) -> None:
    result = measured()
    assert result.status.completed, result.reasons
    found = metrics_of(result)
    planted = 1000 * PLANTED_SECONDS
    assert found["time_to_first_token_p50"] >= planted
    # Two requests take turns on the one device, so that most tokens wait for one of the other.
    assert planted <= found["inter_token_latency_p50"] <= found["inter_token_latency_p99"]
    assert found["measured_requests"] == 8
    assert found["measured_inter_token_latencies"] == 8 * 3
    assert found["requests_per_second"] <= 1 / (4 * PLANTED_SECONDS)
    samples = result.ranks[0].window.samples
    assert {sample.real_tokens for sample in samples} == {2 * 4}
    answers = result.ranks[0].answers
    assert answers is not None and len(answers.tokens) == 10
    assert {len(answer) for answer in answers.tokens} == {4}
    assert all(FIRST_LETTER <= letter < FIRST_LETTER + 2048 for letter in answers.tokens[0])
    shown = result.ranks[0].evidence["openai-endpoint"]
    assert shown["models"] == ["tiny"] and shown["tokens_by_the_server"] == 8 * 4


def test_a_server_that_answers_otherwise_is_seen(
    measured: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from accel_bench.analysis.checks.agreement import agreement

    first = measured()
    same = agreement(first, measured())
    assert same is not None and same.differing == 0
    monkeypatch.setattr(Handler, "other", True)
    other = agreement(first, measured())
    assert other is not None and other.differing == other.requests == 10


def test_a_server_is_not_as_fast_as_it_says(
    measured: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "boast", 2)
    result = measured()
    assert result.status.value == "invalid"
    assert "the server counted 8 tokens, 4 were asked" in result.reasons[0]


def test_letters_are_told_from_token_ids(
    measured: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = measured().ranks
    assert rank.answers is not None and rank.answers.unit == "letters"
    monkeypatch.setattr(Handler, "ids", True)
    (told,) = measured().ranks
    assert told.answers is not None and told.answers.unit == "tokens"
    letters = [[letter - FIRST_LETTER for letter in one] for one in rank.answers.tokens]
    assert [list(one) for one in told.answers.tokens] == letters


def test_requests_at_a_rate_do_not_wait_for_answers(measured: Callable[..., Result]) -> None:
    result = measured("rate: 100", **{"engine.most_waiting": 8, "measure.steps": 12})
    assert result.status.completed, result.reasons
    found = metrics_of(result)
    # All came at once, and one token is computed at a time.
    assert found["request_latency_p99"] >= 1000 * PLANTED_SECONDS * 4 * 4
    assert found["queueing_p50"] >= 0
    shown = result.ranks[0].evidence["openai-endpoint"]["summary"]
    assert shown.startswith("saturated: ")


def test_what_the_server_refuses_ends_the_run_with_its_words(
    measured: Callable[..., Result],
) -> None:
    result = measured(**{"engine.model": "unknown"})
    assert result.status.value == "invalid"
    assert "answered 404" in result.reasons[0] and "no such model" in result.reasons[0]


def test_another_machine_is_only_asked_where_that_is_allowed(
    measured: Callable[..., Result],
) -> None:
    result = measured(**{"engine.url": "http://192.0.2.1:8000/v1"})
    assert result.status.value == "skipped"
    assert "192.0.2.1 is another machine" in result.reasons[0]


def test_the_cache_is_the_servers_own(measured: Callable[..., Result]) -> None:
    result = measured("cache: static")
    assert result.status.value == "skipped"
    assert "the server's own" in result.reasons[0]
