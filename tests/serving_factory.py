"""Runs that answer requests, made up for tests, and a server of completions that remembers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from analysis_factory import make_experiment, make_rank, make_result

from accel_bench.result import Metric, RankResult, Result
from accel_bench.scenario.uses import Use
from accel_bench.worker.generated import stored_answers

TEXT = tuple(range(10))
NOISE = (1.0, 1.002, 0.998, 1.001, 0.999)
"""Half a percent of noise over five rounds."""

ENGINE = "generate"


def serving(
    stack: str,
    latency_ms: float | None,
    *,
    seconds: float = 0.1,
    rate: float | None = 4.0,
    saturated: bool = False,
    p99_ms: float | None = None,
    answer: Sequence[int] = TEXT,
    sweep: dict[str, Any] | None = None,
    rounds: int = 5,
    inference: dict[str, Any] | None = None,
    declares: bool = False,
    answered_by: str = ENGINE,
    **changes: Any,
) -> list[Result]:
    """Rounds of a stack whose steps take so long, and whose median request so many ms.

    None where that was not measured; `declares` its settings of `inference` as its own;
    `answered_by` is the plugin whose engine answered.
    """
    asked = {"prompt_tokens": 100, "new_tokens": 10, **({"rate": rate} if rate else {})}
    work = {"mode": "inference", "data": {}, "inference": {**asked, **(inference or {})}}
    work["engine"] = {"use": ENGINE}
    uses = () if stack == "base" else (Use(use=stack),)
    settings = {f"inference.{key}": value for key, value in asked.items()} if declares else {}
    experiment = make_experiment(stack, uses, settings, sweep=sweep, scenario=work)
    found = []
    for number, noise in enumerate((NOISE * (rounds // len(NOISE) + 1))[:rounds]):
        rank = make_rank(step_seconds=(seconds * noise,) * 2)
        latencies = {}
        if latency_ms is not None:
            p99 = p99_ms or 3 * latency_ms
            latencies = {"request_latency_p50": latency_ms * noise, "request_latency_p99": p99}
        rank = _answering(rank, latencies, answer, saturated, answered_by)
        found.append(make_result(experiment, round=number, ranks=[rank], **changes))
    return found


def _answering(
    rank: RankResult,
    latencies: dict[str, float],
    answer: Sequence[int],
    saturated: bool,
    engine: str,
) -> RankResult:
    metrics = [
        Metric(name=name, value=value, unit="ms", scope="rank", better="lower", plugin=engine)
        for name, value in latencies.items()
    ]
    evidence = {**rank.evidence, engine: {"load": {"saturated": saturated}}}
    return rank.model_copy(
        update={
            "update": None,
            "answers": stored_answers([answer]),
            "metrics": (*rank.metrics, *metrics),
            "evidence": evidence,
        }
    )


LETTERS = "abcdefghijklmnop"


class RememberingServer(ThreadingHTTPServer):
    """Speaks OpenAI's completions over HTTP, and remembers prompts as vLLM and SGLang do.

    Tokens of a prompt that began an earlier one cost nothing; each other one takes its time, one
    prompt after the other, as on one device. It answers a prompt always with the same letters.
    """

    daemon_threads = True

    def __init__(self, says: bool, seconds_of_a_token: float = 0.0, forgets: bool = False) -> None:
        """Listen on a port of its own; `says` is whether `usage` has `cached_tokens`."""
        super().__init__(("127.0.0.1", 0), _Completions)
        self.says, self.seconds_of_a_token, self.forgets = says, seconds_of_a_token, forgets
        self.asked: list[list[int]] = []
        self.cached: list[int] = []
        self._device = threading.Lock()
        self._beginnings: set[tuple[int, ...]] = set()

    @property
    def url(self) -> str:
        """Address of its API."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def take_in(self, prompt: list[int]) -> int:
        """Compute a prompt; return how many of its first tokens were known."""
        beginnings = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
        with self._device:
            known = sum(one in self._beginnings for one in beginnings)
            time.sleep(self.seconds_of_a_token * (len(prompt) - known))
            if not self.forgets:
                self._beginnings.update(beginnings)
            self.asked.append(prompt)
            self.cached.append(known)
        return known


class _Completions(BaseHTTPRequestHandler):
    server: RememberingServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.server.take_in(asked["prompt"])
        self.send_response(200)
        self.end_headers()
        for number in range(asked["max_tokens"]):
            letter = LETTERS[(sum(asked["prompt"]) + number) % len(LETTERS)]
            self._send({"choices": [{"text": letter}], "model": "remembering"})
        details = {"prompt_tokens_details": {"cached_tokens": known}} if self.server.says else {}
        self._send({"choices": [], "usage": {"completion_tokens": asked["max_tokens"], **details}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


@contextlib.contextmanager
def remembering_server(
    says: bool = True, seconds_of_a_token: float = 0.0, forgets: bool = False
) -> Iterator[RememberingServer]:
    """Yield a server that answers while the block lasts."""
    with RememberingServer(says, seconds_of_a_token, forgets) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
