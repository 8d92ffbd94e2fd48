"""Engine that requests completions from a server, with metrics, and checks for a prompt cache."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from accel_bench import Batch, Metric, Run, Stopwatch, TokenCounts, Window
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.latencies import (
    Arrivals,
    Load,
    latency_metrics,
    load_of_streams,
    now,
)
from accel_bench.modeling.prompts import Prompts
from accel_bench_inference.completion_impl import ask
from accel_bench_inference.completion_stream_impl import Completion, counted_tokens
from accel_bench_inference.openai_endpoint import OpenAIEndpointOptions

ENDING_SECONDS = 10.0
"""Maximum seconds of waiting for open requests after the last timed step."""

POLL_SECONDS = 0.1
"""Interval in seconds at which a full queue checks whether the engine was closed."""


REMEMBERED_TOKENS = 8
"""Number of cached prompt tokens that is ignored, since prompts may begin alike by chance."""

NEW_LAPS = 3
"""Number of batches of new prompts, which are sent after the measured window."""

FROM_A_CACHE = 3.0
"""Least ratio of new prompts' lowest first-token latency to the measured median that shows a cache.
"""

WAY_OUT = (
    "switch the server's cache of prompts off (vLLM: --no-enable-prefix-caching, SGLang: "
    "--disable-radix-cache, llama.cpp: engine.extra: {cache_prompt: false}), start it anew, or "
    "set another inference.seed"
)
"""Advice in error messages for a server that takes prompts from a cache."""


class EndpointEngine:
    """Engine that keeps `batch_size` requests open, or sends requests at the scenario's rate.

    A timed step ends when the next `batch_size` requests, in order of sending, are completed.
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
        self._last_prompt: Sequence[int] = ()
        self._new: list[Completion] = []

    def run(self, stopwatch: Stopwatch) -> None:
        """Complete batches of requests while the stopwatch runs, each as one timed step."""
        size, done = self._asked.batch_size, 0
        if self._asked.rate is not None:
            self._start(self._send_at_rate, self._asked.rate)
        while stopwatch.running:
            if self._asked.rate is None:
                for prompt in self._prompts.take(size):
                    self._send(prompt.tolist(), None)
            answered = [self._wait_for(number) for number in range(done, done + size)]
            done += size
            stopwatch.lap([self._counted(reply) for reply in answered], 0.0)
        self.close()
        kept = (self._answers.get(number) for number in range(done))
        self._keep([reply for reply in kept if isinstance(reply, Completion)])

    def _keep(self, answered: Sequence[Completion]) -> None:
        """Store the responses' token ids, or their characters' codes if a response lacks ids."""
        if all(reply.has_ids for reply in answered):
            self._run.answers.extend(reply.ids for reply in answered)
            return
        self._run.answer_unit = "letters"
        self._run.answers.extend(tuple(map(ord, reply.text)) for reply in answered)

    def close(self) -> None:
        """Stop sending, and wait for open requests, which end at their next token."""
        self._stopped.set()
        limit = time.monotonic() + ENDING_SECONDS
        for thread in [*self._asking]:
            thread.join(max(0.0, limit - time.monotonic()))

    def metrics(self, window: Window) -> Iterator[Metric]:
        """Yield metrics of the measured requests: latency, whole responses, and cached tokens."""
        size, first = self._asked.batch_size, window.samples[0].step
        numbers = range(first * size, (first + len(window.samples)) * size)
        known = (self._answers[number] for number in numbers)
        self._window = [reply for reply in known if isinstance(reply, Completion)]
        served = [reply.served for reply in self._window]
        yield from latency_metrics(served, self._load(), window.seconds)
        yield self._whole_answers()
        if any(reply.cached_tokens is None for reply in self._window):
            self._ask_new_prompts()
        yield self._from_a_cache()

    def _ask_new_prompts(self) -> None:
        """Send shuffled prompts, which no cache can contain, and store their completions.

        Most servers do not report cache hits, so a slower response to new prompts reveals a cache.
        At a rate these prompts are sent among the other requests, unless the queue grows.
        """
        if (load := self._load()) and load.saturated:
            return
        longest = max(max(reply.served.request_seconds) for reply in self._window)
        seconds = min(max(ENDING_SECONDS, 2 * longest), self._options.answer_seconds)
        options = self._options.model_copy(update={"answer_seconds": seconds})
        at_once = self._asked.batch_size if self._asked.rate is None else 1
        for _ in range(NEW_LAPS):
            with ThreadPoolExecutor(at_once) as pool:
                for _ in range(at_once):
                    pool.submit(self._ask_new, options, _shuffled(self._last_prompt))

    def _ask_new(self, options: OpenAIEndpointOptions, prompt: Sequence[int]) -> None:
        try:
            self._new.append(ask(options, self._body(prompt), len(prompt), None))
        except Exception as error:
            self._run.logger.warning("a new prompt was not answered: %s", error)

    def _from_a_cache(self) -> Metric:
        """Return the metric `cached_prompt_tokens`, the fraction of prompt tokens from a cache.

        Its value is null if the server does not report it. The metric's `reason` is set if a cache
        served prompts, or if the server reports nothing.
        """
        said = [reply for reply in self._window if reply.cached_tokens is not None]
        cached = sum(reply.cached_tokens or 0 for reply in said)
        share = cached / sum(reply.served.prompt_tokens for reply in said) if said else None
        remembered = ""
        if any(_is_remembered(reply) for reply in said):
            remembered = (
                f"the server took {share:.0%} of the prompts' tokens from a cache: {WAY_OUT}"
            )
        elif waits := self._waits_apart():
            measured, new = (1000 * wait for wait in waits)
            remembered = (
                f"the first token came after {measured:.3g} ms, and after {new:.3g} ms or more for "
                f"prompts that the server was never asked: it answers from a cache; {WAY_OUT}"
            )
        silent = "" if said else "the server does not say what it takes from a cache"
        return Metric(
            name="cached_prompt_tokens",
            value=share,
            unit="1",
            scope="rank",
            reason=remembered or silent,
            degrades=bool(remembered),
        )

    def _waits_apart(self) -> tuple[float, float] | None:
        """Return, in seconds, the median first-token latency and the lowest one of new prompts.

        None unless new prompts wait so much longer that only a cache explains the difference.
        """
        new = [wait for reply in self._new for wait in reply.served.first_token_seconds]
        waits = [wait for reply in self._window for wait in reply.served.first_token_seconds]
        if not new or not waits or min(new) < FROM_A_CACHE * statistics.median(waits):
            return None
        return statistics.median(waits), min(new)

    def _whole_answers(self) -> Metric:
        """Return the metric `whole_answers`, the fraction of requests with all requested tokens.

        If some have more or fewer tokens, the metric says so, and the result is degraded.
        """
        asked, requests = self._asked.new_tokens, len(self._window)
        other = [reply for reply in self._window if counted_tokens(reply, asked) != asked]
        reason = ""
        if other:
            why = sorted({reply.finished for reply in other if reply.finished})
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
        """Return JSON evidence: the server's name of its model, token counts, and the load."""
        load = self._load() if self._window else None
        models = sorted({reply.model for reply in self._window})
        parts = sum(reply.parts for reply in self._window)
        said = [reply.said_tokens for reply in self._window if reply.said_tokens is not None]
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
        """Return request rates and utilization in the window; None if the scenario sets no rate."""
        if self._asked.rate is None:
            return None
        return load_of_streams([reply.served for reply in self._window], self._asked.rate)

    def _send_at_rate(self, rate: float) -> None:
        """Send requests at `rate`, in 1/s, without waiting for earlier responses, until closed.

        An error in reading the data is stored as the next request's result.
        """
        arrivals, began = Arrivals(rate, self._asked.seed + self._run.rank), now()
        while not self._stopped.is_set():
            try:
                (prompt,) = self._prompts.take(1)
            except Exception as error:
                self._answer(self._sent, error)
                return
            while not (due := arrivals.take(now() - began, 1)):
                if self._stopped.wait(arrivals.until_next(now() - began)):
                    return
            while not self._room.acquire(timeout=POLL_SECONDS):
                if self._stopped.is_set():
                    return
            self._send(prompt.tolist(), began + due[0])

    def _send(self, prompt: Sequence[int], arrival: float | None) -> None:
        self._last_prompt = prompt
        self._start(self._ask, self._sent, prompt, arrival)
        self._sent += 1

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._asking = [worker for worker in self._asking if worker.is_alive()] + [thread]
        thread.start()

    def _ask(self, number: int, prompt: Sequence[int], arrival: float | None) -> None:
        """Request one completion, and store its result or error under `number`.

        `arrival` is the request's arrival time in seconds of the clock `now()`; None if requests
        have none.
        """
        result: Completion | BaseException
        try:
            body = self._body(prompt)
            result = ask(self._options, body, len(prompt), arrival, self._stopped.is_set)
        except Exception as error:
            result = error
        self._room.release()
        self._answer(number, result)

    def _answer(self, number: int, answer: Completion | BaseException) -> None:
        """Store the completion or error of request `number`, and notify waiting threads."""
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
        """Return the completion of request `number`, waiting for it.

        Raises InvalidRunError if the request failed or takes too long.
        """
        limit = time.monotonic() + self._run.scenario.measure.timeout_seconds
        with self._changed:
            while number not in self._answers and time.monotonic() < limit:
                self._changed.wait(1.0)
            result = self._answers.get(number)
        if isinstance(result, Completion):
            return result
        reason = f"{type(result).__name__}: {result}" if result else "no answer came"
        if isinstance(result, InvalidRunError):
            raise result
        raise InvalidRunError([f"{self._options.url}: request {number}: {reason}"])

    def _counted(self, answer: Completion) -> Batch:
        """Return the token counts of one request as a batch, without padding, which is unknown."""
        new = counted_tokens(answer, self._asked.new_tokens)
        counts = TokenCounts(answer.served.prompt_tokens + new, new, 0)
        return Batch({}, 1, counts, 0)


def _shuffled(prompt: Sequence[int]) -> list[int]:
    """Return a prompt's tokens in an order that no other run uses."""
    return random.SystemRandom().sample(prompt, len(prompt))


def _is_remembered(answer: Completion) -> bool:
    """Return whether more of a prompt's tokens were cached than chance explains."""
    by_chance = min(REMEMBERED_TOKENS, answer.served.prompt_tokens // 2)
    return (answer.cached_tokens or 0) > by_chance
