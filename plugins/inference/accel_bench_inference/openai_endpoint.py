"""The engine `openai-endpoint`: measure a server with OpenAI's completions API on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from accel_bench import (
    Engine,
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    hookimpl,
)
from accel_bench.modeling.hosts import is_loopback

SET_BY_THE_ENGINE = (
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "seed",
    "stream",
    "stream_options",
)
"""Fields of a request that the engine sets to equal values for all stacks."""

OTHER_REQUESTS = (
    "best_of",
    "echo",
    "max_completion_tokens",
    "max_new_tokens",
    "n",
    "n_predict",
    "stop",
    "suffix",
    "truncate_prompt_tokens",
)
"""Further refused fields of a request, which would change the requested work."""

LARGEST_PORT = 65_535


class OpenAIEndpointOptions(Options):
    """Options of `openai-endpoint`: the server's address, and fields of the requests."""

    url: str = Field("http://127.0.0.1:8000/v1", pattern=r"^http://[^/\s]+(/[^\s]*)?$")
    """Address of the API; `/completions` is appended."""

    model: str = ""
    """Name of the model in requests; empty means `model.id`."""

    allow_other_hosts: bool = False
    """True to allow a server on another machine, which measures the network too."""

    extra: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Fields of requests beside OpenAI's, such as vLLM's `{ignore_eos: true}`, without which texts
    may end before `inference.new_tokens`, and `{return_token_ids: true}`, with which tokens are
    compared instead of letters, as with llama.cpp's `{logprobs: 1}`."""

    most_waiting: int = Field(256, ge=1, le=10_000)
    """Maximum number of concurrent requests at a rate; later requests are queued, and their latency
    counts from their arrival."""

    timeout_seconds: float = Field(120.0, gt=0, le=100_000)
    """Maximum seconds of waiting for the next token."""

    answer_seconds: float = Field(3600.0, gt=0, le=1_000_000)
    """Maximum seconds of one whole response."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        """Return the URL; raise ValueError for a wrong host or port, a user, query or fragment."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"{url}: a port is at most {LARGEST_PORT:,}") from None
        if port == 0 or not parts.hostname:
            raise ValueError(f"{url}: give a host, and a port from 1 to {LARGEST_PORT:,}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{url}: give no user, no query and no fragment")
        return url

    @field_validator("extra")
    @classmethod
    def _check_extra(cls, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the fields for requests; raise ValueError for one that would change the work."""
        if own := sorted(extra.keys() & {*SET_BY_THE_ENGINE, *OTHER_REQUESTS}):
            raise ValueError(
                f"{', '.join(own)}: all stacks are asked for the same, by `inference` and "
                "`engine.model`; leave it out of extra"
            )
        return extra


class OpenAIEndpoint(Plugin[OpenAIEndpointOptions]):
    """Sends prompts to a server that speaks OpenAI's completions, and times the stream."""

    Options = OpenAIEndpointOptions

    uses_torch = False
    tasks = frozenset({"causal-lm"})
    modes = frozenset({"inference"})

    def claims(self) -> frozenset[str]:
        """Return `load_model`, the hook that this engine answers in place of the slot `model`.

        The model is not loaded here, since the server has it.
        """
        return frozenset({"load_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield reasons why the server cannot be measured with the scenario's settings."""
        host = urlsplit(self.options.url).hostname or ""
        if not (self.options.allow_other_hosts or is_loopback(host)):
            yield (
                f"{host} is another machine: prompts would leave this one, and the network would "
                "be measured; set engine.allow_other_hosts to allow it"
            )
        asked = experiment.scenario.inference
        if asked.cache != "dynamic" or asked.assistant is not None:
            yield "the cache and an assistant are the server's own: leave them out of `inference`"
        if experiment.scenario.adapter.use != "none":
            yield "the server has its own adapter: set adapter: none"

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return a placeholder without parameters, since the server has the model."""
        return SimpleNamespace(url=self.options.url)

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine that sends requests to the server."""
        from accel_bench_inference.openai_endpoint_impl import EndpointEngine

        engine = EndpointEngine(run, self.options)
        run.on_close(engine.close)
        run.on_evidence(engine.evidence)
        run.on_metrics(engine.metrics)
        return engine
