"""Ask a server for completions as a stream, and note when each part of it arrives."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from accel_bench import Batch, Metric, Run, Stopwatch, TokenCounts, Window
from accel_bench.builtin.engines.openai_endpoint import OpenAIEndpointOptions
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import Arrivals, Load, Served, latency_metrics, now
from accel_bench.modeling.prompts import Prompts

KEPT_LETTERS = 300
"""Letters of a server's complaint that are shown."""

ENDING_SECONDS = 10.0
"""Longest wait for requests that are under way when the last lap has ended."""

POLL_SECONDS = 0.1
"""How often a full server is looked at for its end."""

KEEPS_UP = 0.9
"""Share of the arriving requests that a server which keeps up has answered."""


@dataclass
class Completion:
    """One answered request."""

    served: Served
    text: str
    model: str
    """What the server calls its model."""

    said_tokens: int | None
    """Tokens that the server counted; None where it does not say."""


class EndpointEngine:
    """Asks for `batch_size` completions at once; at a rate, for each when it arrives.

    A lap ends when the next `batch_size` requests, in their order, have been answered.
    """

    def __init__(self, run: Run, options: OpenAIEndpointOptions) -> None:
        self._run, self._options = run, options
        self._asked = run.scenario.inference
        self._prompts = Prompts(run.batches)
        self._answers: dict[int, Completion | BaseException] = {}
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._asking: list[threading.Thread] = []
        self._room = threading.Semaphore(options.most_waiting)
        self._sent = 0
        self._window: list[Completion] = []

    def run(self, stopwatch: Stopwatch) -> None:
        """Lap until the window is full."""
        size, done = self._asked.batch_size, 0
        if self._asked.rate is not None:
            self._start(self._send_at_rate, self._asked.rate)
        while stopwatch.running:
            if self._asked.rate is None:
                for prompt in self._prompts.take(size):
                    self._send(prompt.tolist(), None)
            answered = [self._wait_for(number) for number in range(done, done + size)]
            done += size
            stopwatch.lap([self._counted(one) for one in answered], 0.0)
        self.close()
        kept = (self._answers.get(number) for number in range(done))
        texts = [one.text for one in kept if isinstance(one, Completion)]
        self._run.answers.extend(tuple(map(ord, text)) for text in texts)

    def close(self) -> None:
        """Send no more requests, and wait for those under way, which end at their next token."""
        self._stopped.set()
        limit = time.monotonic() + ENDING_SECONDS
        for thread in [*self._asking]:
            thread.join(max(0.0, limit - time.monotonic()))

    def metrics(self, window: Window) -> Iterator[Metric]:
        """Yield the figures of the requests that were measured."""
        size, first = self._asked.batch_size, window.samples[0].step
        numbers = range(first * size, (first + len(window.samples)) * size)
        known = (self._answers[number] for number in numbers)
        self._window = [one for one in known if isinstance(one, Completion)]
        served = [one.served for one in self._window]
        yield from latency_metrics(served, self._load(), window.seconds)

    def evidence(self) -> dict[str, Any]:
        """Return JSON of what the server says, and of the load."""
        load = self._load() if self._window else None
        models = sorted({one.model for one in self._window})
        parts = sum(one.served.new_tokens for one in self._window)
        said = [one.said_tokens for one in self._window if one.said_tokens is not None]
        text = f"{self._options.url} answered as {', '.join(models) or 'nobody'}"
        if said and sum(said) != parts:
            text += f"; {sum(said):,} tokens came in {parts:,} parts of the streams"
        summary = f"{load.text}; {text}" if load else text
        return {
            "summary": summary,
            "models": models,
            "tokens_by_the_server": sum(said) if said else None,
            "parts_of_streams": parts,
        }

    def _load(self) -> Load | None:
        """Return how the server kept up with the requests of the window."""
        if self._asked.rate is None:
            return None
        arrivals = [one.served.arrivals[0] for one in self._window]
        ended = max(one.served.ended for one in self._window)
        achieved = len(arrivals) / (ended - arrivals[0])
        arrived = len(arrivals) / max(arrivals[-1] - arrivals[0], 1 / self._asked.rate)
        return Load(self._asked.rate, achieved, None, achieved < KEEPS_UP * arrived)

    def _send_at_rate(self, rate: float) -> None:
        """Send requests at their times, whether earlier ones are answered or not."""
        arrivals, began = Arrivals(rate, self._asked.seed + self._run.rank), now()
        while not self._stopped.is_set():
            (prompt,) = self._prompts.take(1)
            while not (due := arrivals.take(now() - began, 1)):
                if self._stopped.wait(arrivals.until_next(now() - began)):
                    return
            while not self._room.acquire(timeout=POLL_SECONDS):
                if self._stopped.is_set():
                    return
            self._send(prompt.tolist(), began + due[0])

    def _send(self, prompt: Sequence[int], arrival: float | None) -> None:
        self._start(self._ask, self._sent, prompt, arrival)
        self._sent += 1

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._asking = [one for one in self._asking if one.is_alive()] + [thread]
        thread.start()

    def _ask(self, number: int, prompt: Sequence[int], arrival: float | None) -> None:
        """Ask for one completion, and hand it over, or the error, under its number."""
        answer: Completion | BaseException
        try:
            body = self._body(prompt)
            answer = ask(self._options, body, len(prompt), arrival, self._stopped.is_set)
        except Exception as error:
            answer = error
        self._room.release()
        with self._changed:
            self._answers[number] = answer
            self._changed.notify_all()

    def _body(self, prompt: Sequence[int]) -> dict[str, Any]:
        sampling = self._asked.decoding == "sampling"
        return {
            "model": self._options.model or self._run.scenario.model.id,
            "prompt": list(prompt),
            "max_tokens": self._asked.new_tokens,
            "temperature": 1.0 if sampling else 0.0,
            "seed": self._asked.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options.extra,
        }

    def _wait_for(self, number: int) -> Completion:
        """Return a request's answer. Raises InvalidRunError for one that failed."""
        limit = time.monotonic() + self._run.scenario.measure.timeout_seconds
        with self._changed:
            while number not in self._answers and time.monotonic() < limit:
                self._changed.wait(1.0)
            answer = self._answers.get(number)
        if isinstance(answer, Completion):
            return answer
        reason = f"{type(answer).__name__}: {answer}" if answer else "no answer came"
        if isinstance(answer, InvalidRunError):
            raise answer
        raise InvalidRunError([f"{self._options.url}: request {number}: {reason}"])

    def _counted(self, answer: Completion) -> Batch:
        """Return the counts of one request: padding is the server's own matter."""
        new = answer.said_tokens or answer.served.new_tokens
        counts = TokenCounts(answer.served.prompt_tokens + new, new, 0)
        return Batch({}, 1, counts, 0)


def ask(
    options: OpenAIEndpointOptions,
    body: dict[str, Any],
    prompt_tokens: int,
    arrival: float | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Completion:
    """Ask for one completion and read its stream, until `stopped`.

    Raises InvalidRunError where it is refused.
    """
    parts = urlsplit(options.url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=options.timeout_seconds
    )
    served = Served(
        requests=1,
        prompt_tokens=prompt_tokens,
        started=now(),
        arrivals=() if arrival is None else (arrival,),
    )
    try:
        path = f"{parts.path.rstrip('/')}/completions"
        content = json.dumps(body).encode()
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            said = response.read().decode(errors="replace")[:KEPT_LETTERS]
            raise InvalidRunError([f"{options.url} answered {response.status}: {said}"])
        return _read_stream(response, served, stopped)
    finally:
        connection.close()


def _read_stream(
    response: http.client.HTTPResponse, served: Served, stopped: Callable[[], bool]
) -> Completion:
    """Read the events of a stream to its end, and note when those with text come."""
    completion = Completion(served, "", "", None)
    for line in response:
        content = line.strip().removeprefix(b"data:").strip()
        if content == b"[DONE]" or stopped():
            break
        if not content:
            continue
        event = json.loads(content)
        instant = now()
        completion.model = event.get("model") or completion.model
        if usage := event.get("usage"):
            completion.said_tokens = usage.get("completion_tokens")
        for choice in event.get("choices") or ():
            if text := choice.get("text"):
                served.tokens.append((instant, 1))
                completion.text += text
    if not served.tokens:
        raise InvalidRunError(["the server's answer has no text"])
    return completion
