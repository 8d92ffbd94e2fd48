"""`hf-trainer`: the same steps through `transformers.Trainer`, which wraps the model by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from accel_bench import Engine, Experiment, Machine, Options, Plugin, Run, hookimpl

WRAPPED_BY_TRAINER = ("none", "ddp")
"""Values of `parallel`: Trainer wraps in DDP where there is more than one process, not else."""


class HFTrainerOptions(Options):
    """Options of `hf-trainer`: how Trainer replicates the model, in the words of its arguments."""

    ddp_bucket_cap_mb: int = Field(25, gt=0)
    """Size of the buckets in which gradients are reduced, in MiB."""

    ddp_static_graph: bool = False
    """Tell DDP that the graph is the same in every step."""

    ddp_find_unused_parameters: bool = False
    """Look in every step for parameters that get no gradient; Trainer's own default looks."""


class HFTrainer(Plugin[HFTrainerOptions]):
    """Drives optimizer steps with Trainer, on the same batches and with the same optimizer.

    It answers `parallelize_model` too: a model that is wrapped before Trainer wraps it again trains
    with a wrong loss, in silence.
    """

    Options = HFTrainerOptions
    modes = frozenset({"train"})
    requires = ("accelerate>=1.1",)
    strategy = "DistributedDataParallel"

    def claims(self) -> frozenset[str]:
        """Return the engine's hook, and that of the plugin of `parallel`."""
        return frozenset({"build_engine", "parallelize_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Refuse a setting of `parallel` that Trainer would not follow."""
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
        """Import Trainer, so that its memory counts as that of imports, and not as the model's."""
        from accel_bench_hf_trainer import impl  # noqa: F401

    @hookimpl
    def parallelize_model(self, run: Run) -> Any:
        """Return the bare model, for Trainer to wrap."""
        return run.model

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the Trainer, ready to start."""
        from accel_bench_hf_trainer.impl import HFTrainerEngine

        engine = HFTrainerEngine(run, self.options)
        run.on_evidence(engine.evidence)
        return engine
