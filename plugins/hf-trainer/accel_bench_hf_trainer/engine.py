"""The engine `hf-trainer`: optimizer steps by `transformers.Trainer`, which wraps the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from accel_bench import Engine, Experiment, Machine, Options, Plugin, Run, hookimpl

WRAPPED_BY_TRAINER = ("none", "ddp")
"""Supported values of `parallel`: Trainer uses DDP for several processes, nothing for one."""


class HFTrainerOptions(Options):
    """Options of `hf-trainer`: DDP settings, by the names of Trainer's arguments."""

    ddp_bucket_cap_mb: int = Field(25, gt=0)
    """Size in MiB of the buckets in which gradients are reduced."""

    ddp_static_graph: bool = False
    """True to let DDP assume the same graph in every step."""

    ddp_find_unused_parameters: bool = False
    """Search for parameters without gradient in every step; Trainer's own default does."""


class HFTrainer(Plugin[HFTrainerOptions]):
    """Drives optimizer steps with Trainer, on the same batches and with the same optimizer.

    It replaces `parallelize_model` too: a model that Trainer wraps a second time silently trains
    with a wrong loss.
    """

    Options = HFTrainerOptions
    modes = frozenset({"train"})
    requires = ("accelerate>=1.1",)
    strategy = "DistributedDataParallel"

    def claims(self) -> frozenset[str]:
        """Return the hooks of engine and parallelism, which no other plugin may implement."""
        return frozenset({"build_engine", "parallelize_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield a reason if `parallel` is set to a value that Trainer does not support."""
        parallel = experiment.scenario.parallel
        if parallel.use not in WRAPPED_BY_TRAINER:
            yield f"{self.name} wraps the model itself: parallel: {parallel.use} would do nothing"
        elif parallel.options:
            given = ", ".join(parallel.options)
            yield (
                f"{self.name} wraps the model itself: parallel.{given} would do nothing; "
                f"the options ddp_... of {self.name} are read"
            )

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import Trainer here, so that its memory is counted as memory of imports."""
        from accel_bench_hf_trainer import impl  # noqa: F401

    @hookimpl
    def parallelize_model(self, run: Run) -> Any:
        """Return the model unchanged, since Trainer wraps it."""
        return run.model

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return an engine that starts Trainer."""
        from accel_bench_hf_trainer.impl import HFTrainerEngine

        engine = HFTrainerEngine(run, self.options)
        run.on_evidence(engine.evidence)
        return engine
