"""`openai-endpoint`: measures a server that speaks OpenAI's completions, on this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field

from accel_bench import (
    Engine,
    Experiment,
    Machine,
    Metric,
    Options,
    Plugin,
    Run,
    Window,
    hookimpl,
)

if TYPE_CHECKING:
    from accel_bench.builtin.engines.openai_endpoint_impl import EndpointEngine


class OpenAIEndpointOptions(Options):
    """Where the server is, and what else it is to be told."""

    url: str = Field("http://127.0.0.1:8000/v1", pattern=r"^http://[^/\s]+(/[^\s]*)?$")
    """Address of its API; `/completions` is added."""

    model: str = ""
    """Name of the model in the requests; empty means `model.id`."""

    allow_other_hosts: bool = False
    """Whether the server may be on another machine: then the network is measured too."""

    extra: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Fields of the requests beside OpenAI's own, such as vLLM's `{ignore_eos: true}`, without
    which texts may end before `inference.new_tokens`."""

    most_waiting: int = Field(256, ge=1, le=10_000)
    """Requests that may be under way at a rate: further ones are sent when earlier ones end, and
    wait from their arrival on."""

    timeout_seconds: float = Field(120.0, gt=0, le=100_000)
    """Longest wait for the next token."""


class OpenAIEndpoint(Plugin[OpenAIEndpointOptions]):
    """Sends prompts to a server that speaks OpenAI's completions, and times the stream."""

    Options = OpenAIEndpointOptions

    uses_torch = False
    tasks = frozenset({"causal-lm"})
    modes = frozenset({"inference"})

    def __init__(self, options: OpenAIEndpointOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._engine: EndpointEngine | None = None

    def claims(self) -> frozenset[str]:
        """Stand in for the model, which the server has loaded."""
        return frozenset({"load_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield why the server may not be asked, and what is its own matter."""
        host = urlsplit(self.options.url).hostname or ""
        if not (self.options.allow_other_hosts or _is_here(host)):
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
        """Return what stands in the place of the model."""
        return ServedElsewhere(self.options.url)

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine that asks the server."""
        from accel_bench.builtin.engines.openai_endpoint_impl import EndpointEngine

        self._engine = EndpointEngine(run, self.options)
        run.on_close(self._engine.close)
        return self._engine

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterator[Metric]:
        """Return latencies and rates of the window's requests."""
        if self._engine is not None:
            yield from self._engine.metrics(window)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """Return what the server called its model, and how it kept up."""
        return {} if self._engine is None else self._engine.evidence()


class ServedElsewhere:
    """A model without parameters here."""

    def __init__(self, url: str) -> None:
        self.url = url


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, by its loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
