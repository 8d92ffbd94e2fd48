"""The engine `generate`: generate tokens with transformers' `generate`, and time each token."""

from __future__ import annotations

from collections.abc import Iterable

from accel_bench import (
    Engine,
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    hookimpl,
)


class Generate(Plugin[Options]):
    """Answers batches of requests with transformers' `generate`, token by token."""

    tasks = frozenset({"causal-lm"})
    modes = frozenset({"inference"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield a reason for each inference setting that `generate` does not support."""
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
        """Import torch here, since a later import would count as the model's memory."""
        from accel_bench_inference import generate_impl  # noqa: F401

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine, which sets the model to evaluation mode."""
        from accel_bench_inference.generate_impl import GenerateEngine

        engine = GenerateEngine(run)
        run.on_evidence(engine.evidence)
        run.on_metrics(engine.metrics)
        return engine
