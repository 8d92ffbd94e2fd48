"""Ask a server for completions as a stream, and note when each part of it arrives."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from accel_bench import Batch, Metric, Run, Stopwatch, TokenCounts, Window
from accel_bench.builtin.engines.openai_endpoint import OpenAIEndpointOptions
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import (
    Arrivals,
    Load,
    Served,
    latency_metrics,
    load_of_streams,
    now,
    spread_evenly,
)
from accel_bench.modeling.prompts import Prompts

KEPT_LETTERS = 300
"""Letters of a server's complaint that are shown."""

ENDING_SECONDS = 10.0
"""Longest wait for requests that are under way when the last lap has ended."""

POLL_SECONDS = 0.1
"""How often a full server is looked at for its end."""

MOST_BYTES_OF_A_LINE = 1 << 20
"""Longest line of a stream that is read."""

MOST_LETTERS_OF_A_TOKEN = 1000
"""Letters that a text may have for each token that was asked for."""

MOST_LINES_OF_A_TOKEN = 8
"""Lines that a stream may have for each token that was asked for."""

LINES_BESIDE = 1000
"""Lines that a stream may have beside those of its tokens, such as comments that keep it alive."""


@dataclass
class Completion:
    """One answered request."""

    served: Served
    text: str
    model: str
    """What the server calls its model."""

    said_tokens: int | None
    """Tokens that the server counted; None where it does not say."""

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
        self._keep([one for one in kept if isinstance(one, Completion)])

    def _keep(self, answered: Sequence[Completion]) -> None:
        """Keep what was generated: token ids where all answers have them, else letters."""
        if all(one.has_ids for one in answered):
            self._run.answers.extend(one.ids for one in answered)
            return
        self._run.answer_unit = "letters"
        self._run.answers.extend(tuple(map(ord, one.text)) for one in answered)

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
        yield self._whole_answers()

    def _whole_answers(self) -> Metric:
        """Return the share of requests with as many tokens as were asked for; others are no
        complete work."""
        asked, requests = self._asked.new_tokens, len(self._window)
        other = [one for one in self._window if counted_tokens(one, asked) != asked]
        reason = ""
        if other:
            why = sorted({one.finished for one in other if one.finished})
            said = f" (finish_reason: {', '.join(why)})" if why else ""
            reason = (
                f"{len(other):,} of {requests:,} answers have other than {asked:,} tokens{said}: "
                "texts end early, or the server does not count its tokens"
            )
        return Metric(
            name="whole_answers",
            value=1 - len(other) / requests,
            unit="1",
            scope="rank",
            better="higher",
            reason=reason,
            degrades=bool(other),
        )

    def evidence(self) -> dict[str, Any]:
        """Return JSON of what the server says, and of the load."""
        load = self._load() if self._window else None
        models = sorted({one.model for one in self._window})
        parts = sum(one.parts for one in self._window)
        said = [one.said_tokens for one in self._window if one.said_tokens is not None]
        text = f"{self._options.url} answered as {', '.join(models) or 'nobody'}"
        if said and sum(said) != parts:
            text += f"; {sum(said):,} tokens came in {parts:,} parts of the streams"
        summary = f"{load.text}; {text}" if load else text
        return {
            "summary": summary,
            **({"load": dict(vars(load))} if load else {}),
            "models": models,
            "tokens_by_the_server": sum(said) if said else None,
            "parts_of_streams": parts,
        }

    def _load(self) -> Load | None:
        """Return how the server kept up with the requests of the window."""
        if self._asked.rate is None:
            return None
        return load_of_streams([one.served for one in self._window], self._asked.rate)

    def _send_at_rate(self, rate: float) -> None:
        """Send requests at their times; an error is the answer to the next one."""
        try:
            self._send_when_due(rate)
        except Exception as error:
            self._answer(self._sent, error)

    def _send_when_due(self, rate: float) -> None:
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
        self._answer(number, answer)

    def _answer(self, number: int, answer: Completion | BaseException) -> None:
        """Hand over what came of a request."""
        with self._changed:
            self._answers[number] = answer
            self._changed.notify_all()

    def _body(self, prompt: Sequence[int]) -> dict[str, Any]:
        sampling = self._asked.decoding == "sampling"
        return {
            **self._options.extra,
            "model": self._options.model or self._run.scenario.model.id,
            "prompt": list(prompt),
            "max_tokens": self._asked.new_tokens,
            "temperature": 1.0 if sampling else 0.0,
            "seed": self._asked.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
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
        new = counted_tokens(answer, self._asked.new_tokens)
        counts = TokenCounts(answer.served.prompt_tokens + new, new, 0)
        return Batch({}, 1, counts, 0)


def counted_tokens(answer: Completion, asked: int) -> int:
    """Return the tokens of an answer: never more than were asked for."""
    said = answer.said_tokens
    return min(answer.served.new_tokens if said is None else said, asked)


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
        limits = Limits(int(body["max_tokens"]), now() + options.answer_seconds)
        with connection.getresponse() as response:
            if response.status != http.HTTPStatus.OK:
                said = response.read(KEPT_LETTERS).decode(errors="replace")
                raise InvalidRunError([f"{options.url} answered {response.status}: {said}"])
            return read_stream(response, served, limits, stopped)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRunError(
            [f"{options.url}: a part of the stream is no JSON: {error}"]
        ) from None
    finally:
        connection.close()


class Limits(NamedTuple):
    """What one answer may have."""

    tokens: int
    """Tokens that were asked for."""

    until: float
    """When it must have ended."""


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
            _take_event(completion, json.loads(content), instant, limits)
    else:
        raise InvalidRunError([f"the server's stream has not ended after {most:,} lines"])
    return _checked(completion, limits)


def _take_event(
    completion: Completion, event: dict[str, Any], instant: float, limits: Limits
) -> None:
    """Add what an event says. Raises InvalidRunError for an error."""
    if complaint := event.get("error"):
        said = json.dumps(complaint)[:KEPT_LETTERS]
        raise InvalidRunError([f"the server ended its stream with an error: {said}"])
    completion.model = str(event.get("model") or completion.model)[:KEPT_LETTERS]
    if usage := event.get("usage"):
        completion.said_tokens = usage.get("completion_tokens")
    for choice in event.get("choices") or ():
        text, ids = choice.get("text") or "", _ids_of(choice)
        if text or ids:
            completion.has_ids = completion.has_ids and _are_ids(ids)
            completion.ids += ids if _are_ids(ids) else ()
            completion.served.tokens.append((instant, len(ids) if _are_ids(ids) else 1))
            completion.text += text
        if reason := choice.get("finish_reason"):
            completion.finished, completion.ended = str(reason)[:KEPT_LETTERS], True
    if len(completion.text) > MOST_LETTERS_OF_A_TOKEN * limits.tokens:
        raise InvalidRunError([f"the server's text has {len(completion.text):,} letters"])


def _ids_of(choice: dict[str, Any]) -> Any:
    """Return the token ids of a part, as vLLM sends them, or as llama.cpp does beside logprobs."""
    if "token_ids" in choice:
        return choice["token_ids"]
    told = choice.get("logprobs")
    content = told.get("content") if isinstance(told, dict) else None
    if not isinstance(content, list):
        return None
    return [one.get("id") if isinstance(one, dict) else None for one in content]


def _are_ids(ids: Any) -> bool:
    """Return whether this is a list of token ids."""
    return bool(ids) and isinstance(ids, list) and all(type(one) is int for one in ids)


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
            [f"the server counted {str(said)[:KEPT_LETTERS]} tokens, {limits.tokens:,} were asked"]
        )
    completion.said_tokens = said
    if not completion.has_ids and said > completion.parts:
        served.tokens = spread_evenly(served.tokens, said)
    return completion
