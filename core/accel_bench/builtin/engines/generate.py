"""`generate`: answers requests by the model's own `generate`, and times every token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

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
    from accel_bench.builtin.engines.generate_impl import GenerateEngine


class Generate(Plugin[Options]):
    """Answers batches of requests with transformers' `generate`, token by token."""

    tasks = frozenset({"causal-lm"})
    modes = frozenset({"inference"})

    def __init__(self, options: Options, name: str = "") -> None:
        super().__init__(options, name)
        self._engine: GenerateEngine | None = None

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield what `generate` cannot do."""
        scenario = experiment.scenario
        asked = scenario.inference
        if asked.assistant is not None and asked.batch_size > 1:
            yield "an assistant drafts for one request at a time: set inference.batch_size to 1"
        if asked.assistant is not None and asked.cache == "static":
            yield "an assistant needs a cache that shrinks: set inference.cache to dynamic"
        if asked.cache == "static" and scenario.train.precision.endswith("-autocast"):
            yield (
                "a static cache has one dtype, and under autocast keys and values may have two: "
                "set inference.cache to dynamic, or model.dtype in the place of train.precision"
            )
        if scenario.train.gradient_accumulation > 1:
            yield "nothing is accumulated in mode inference: leave train.gradient_accumulation out"

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import torch: core sets it up next, and leaves it out of the memory that a run needs."""
        from accel_bench.builtin.engines import generate_impl  # noqa: F401

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine; the model goes into evaluation mode."""
        from accel_bench.builtin.engines.generate_impl import GenerateEngine

        self._engine = GenerateEngine(run)
        run.on_evidence(self._engine.evidence)
        return self._engine

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterator[Metric]:
        """Return latencies and rates of the window's requests, and the size of the cache."""
        if self._engine is not None:
            yield from self._engine.metrics(window)
