"""Inference by transformers' `generate`: its prompts, its cache, and streamed tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, StaticCache
from transformers.generation.streamers import BaseStreamer

from accel_bench import Batch, Metric, Run, Stopwatch, TokenCounts, Window
from accel_bench.modeling.contract import text_config
from accel_bench.modeling.key_value_cache import CacheSize, cache_size, head_size, key_value_heads
from accel_bench.modeling.latencies import (
    Arrivals,
    Load,
    Served,
    latency_metrics,
    load_of,
    now,
)
from accel_bench.modeling.prompts import Prompts, left_padded

DRAFTED_TOKENS = 5
"""Number of tokens that an assistant model drafts before each verification."""


class TokenStream(BaseStreamer):
    """Streamer that stores generated tokens with their arrival times, and skips the prompt."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []
        self.tokens: list[torch.Tensor] = []
        """Generated tokens on the host, as tensors of shape (requests, tokens)."""

        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Store tokens of shape (requests,), or an assistant's draft of shape (1, tokens)."""
        if self._is_prompt:
            self._is_prompt = False
            return
        tokens = value if value.dim() > 1 else value[:, None]
        self.times.append((now(), tokens.shape[1]))
        self.tokens.append(tokens)

    def end(self) -> None:
        """Do nothing, since the last token is already stored."""


class Generator:
    """Generator of answers: the model, its key-value caches, and the settings of `inference`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked = run.scenario.inference
        self._model = run.model
        self._model.train(False)
        self._config = self._configuration()
        self._caches: dict[int, StaticCache] = {}
        self._assistant = None if self._asked.assistant is None else self._load_assistant()
        self._draws = 0
        self.cache: CacheSize | None = None
        """Size of the key-value cache of the first requests."""

    def answer(self, prompts: Sequence[torch.Tensor], arrivals: Sequence[float]) -> _Answered:
        """Generate a batch of answers, and return it with its requests when all is on the host.

        `prompts` are the token ids of each request, and `arrivals` are the requests' arrival times
        in seconds of the clock `now()`, if they have any.
        """
        if self._asked.decoding == "sampling":
            self._draws += 1
            torch.manual_seed(self._asked.seed + self._draws)
        streamer = TokenStream()
        served = Served(
            requests=len(prompts),
            prompt_tokens=sum(map(len, prompts)),
            arrivals=arrivals,
            started=now(),
        )
        pad = self._config.pad_token_id
        ids, mask = left_padded(prompts, self._asked.prompt_tokens, int(pad), self._run.device)
        with self._run.autocast():
            output = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=self._config,
                streamer=streamer,
                **self._more(len(prompts)),
            )
        served.tokens = streamer.times
        if self.cache is None:
            self.cache = cache_size(output.past_key_values, self._run, len(prompts))
        return _Answered(served, prompts, streamer.tokens)

    def _more(self, requests: int) -> dict[str, Any]:
        """Return arguments of `generate` for an assistant or a static cache; empty without either.

        `requests` is the number of requests in the batch.
        """
        if self._assistant is not None:
            return {"assistant_model": self._assistant}
        if self._asked.cache == "dynamic":
            return {}
        if requests not in self._caches:
            self._caches[requests] = self._static_cache(requests)
        self._caches[requests].reset()
        return {"past_key_values": self._caches[requests]}

    def _static_cache(self, requests: int) -> StaticCache:
        """Return a static cache for `requests` requests, without room for the last token."""
        config = text_config(self._model.config)
        length = self._asked.prompt_tokens + self._asked.new_tokens - 1
        cache = StaticCache(config=config, max_cache_len=length)
        heads, size = key_value_heads(config), head_size(config)
        if heads is not None and size is not None:  # Else each layer sees at its first call.
            place = torch.device(str(self._run.device))
            dtype = getattr(torch, self._run.scenario.compute_dtype)
            cache.early_initialization(requests, heads, size, dtype, place)
        return cache

    def _configuration(self) -> GenerationConfig:
        """Return the settings of `generate`; they also replace the model's generation settings."""
        pad = getattr(self._run.dataset, "pad_token_id", 0)
        samples = self._asked.decoding == "sampling"
        config = GenerationConfig(
            max_new_tokens=self._asked.new_tokens,
            do_sample=samples,
            pad_token_id=pad,
            eos_token_id=None,
            use_cache=True,
            disable_compile=True,
            return_dict_in_generate=True,
            **({"top_k": 0, "top_p": 1.0, "temperature": 1.0} if samples else {}),
        )
        if self._asked.assistant is not None:
            config.num_assistant_tokens = DRAFTED_TOKENS
            config.num_assistant_tokens_schedule = "constant"
        for model in (self._model, getattr(self._model, "base_model", self._model)):
            if hasattr(model, "generation_config"):
                model.generation_config = config
        return config

    def _load_assistant(self) -> Any:
        """Return the assistant model; its weights are random if the model's are random."""
        from accel_bench.modeling.loading import load_other_model

        assert self._asked.assistant is not None
        assistant = load_other_model(self._run, self._asked.assistant).train(False)
        assistant.generation_config = GenerationConfig(
            num_assistant_tokens=DRAFTED_TOKENS,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
            use_cache=True,
            eos_token_id=None,
            disable_compile=True,
        )
        return assistant


@dataclass
class _Answered:
    """A completed batch of requests, whose tensors are on the host."""

    served: Served
    prompts: Sequence[torch.Tensor]
    tokens: Sequence[torch.Tensor]
    """Generated tokens as tensors of shape (requests, tokens), in order."""

    @property
    def rows(self) -> list[list[int]]:
        """Generated token ids of each request."""
        return torch.cat([*self.tokens], dim=1).tolist()


class GenerateEngine:
    """Engine that completes batches of requests in succession, one in each timed step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked = run.scenario.inference
        self._generator = Generator(run)
        self._prompts = Prompts(run.batches)
        self._answered: list[_Answered] = []
        rate, seed = self._asked.rate, self._asked.seed
        self._arrivals = None if rate is None else Arrivals(rate, seed + run.rank)
        self._began = now()
        """Start in seconds of the clock of arrivals, which stops between timed steps."""

        self._waited = 0.0
        self._window: list[Served] = []

    def run(self, stopwatch: Stopwatch) -> None:
        """Complete batches of requests while the stopwatch runs, each as one timed step."""
        self._began = now()
        while stopwatch.running:
            arrivals = self._await_requests(stopwatch)
            count = self._asked.batch_size if arrivals is None else len(arrivals)
            prompts = self._prompts.take(count)
            answered = self._generator.answer(prompts, arrivals or ())
            answered.served.waited = self._waited
            self._answered.append(answered)
            ended = now()
            stopwatch.lap([self._counted(answered.served)], 0.0)
            self._began += now() - ended  # Requests do not arrive while core looks after the run.
        self._run.answers.extend(row for batch in self._answered for row in batch.rows)
        self._run.prompts.extend(prompt for batch in self._answered for prompt in batch.prompts)

    def metrics(self, window: Window) -> Iterator[Metric]:
        """Yield latency and cache metrics of the requests in the measured window."""
        first = window.samples[0].step
        answered = self._answered[first : first + len(window.samples)]
        self._window = [batch.served for batch in answered]
        yield from latency_metrics(self._window, self._load(), window.seconds)
        size = self._generator.cache
        if size is not None:
            yield Metric(
                name="kv_cache_bytes",
                value=size.bytes,
                unit="bytes",
                scope="rank",
                better="lower",
                reason=size.problem,
            )

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the key-value cache and the load of requests."""
        size = self._generator.cache
        facts: dict[str, Any] = {"kv_cache": None if size is None else size.document()}
        texts = [] if size is None else [size.text]
        if load := self._load():
            texts.insert(0, load.text)
            facts["load"] = dict(vars(load))
        return {"summary": "; ".join(texts), **facts}

    def _load(self) -> Load | None:
        """Return request rates and utilization in the window; None without a rate or a window."""
        if self._asked.rate is None or not self._window:
            return None
        return load_of(self._window, self._asked.rate)

    def _await_requests(self, stopwatch: Stopwatch) -> list[float] | None:
        """Wait for the next request, and return the arrival times of all waiting requests.

        The times are seconds of the clock `now()`. Returns None if the scenario sets no rate, since
        requests then follow one another.
        """
        if self._arrivals is None:
            return None
        self._waited = self._arrivals.until_next(now() - self._began)
        if self._waited:
            time.sleep(self._waited)
            stopwatch.resume()
        while not (times := self._arrivals.take(now() - self._began, self._asked.batch_size)):
            time.sleep(0)
        return [self._began + arrival for arrival in times]

    def _counted(self, served: Served) -> Batch:
        """Return one timed step's token counts, of prompts and of generated tokens, as a batch."""
        prompts = served.requests * self._asked.prompt_tokens
        counts = TokenCounts(prompts + served.new_tokens, served.new_tokens, 0)
        return Batch({}, served.requests, counts, 0)
