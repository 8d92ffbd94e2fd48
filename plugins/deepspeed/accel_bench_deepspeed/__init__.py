"""The plugin `deepspeed`: ZeRO and its offload to the host, by DeepSpeed's engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import model_validator

from accel_bench import Engine, Experiment, Machine, Options, Plugin, Run, Scenario, hookimpl
from accel_bench_deepspeed.config import (
    contradictions,
    merged,
    offloaded,
    read_config,
    settings,
    stage_of,
)


class DeepSpeedOptions(Options):
    """Options of `deepspeed`: partitioning over devices, and offload to the host."""

    stage: Literal[0, 1, 2, 3] | None = None
    """Stage of ZeRO: 1 partitions the optimizer state, 2 also gradients, 3 also weights, 0 nothing.
    Null is the stage of `config`, else 2."""

    offload_optimizer: bool = False
    """Keep the optimizer state on the host, and run torch's optimizer there."""

    offload_parameters: bool = False
    """Keep weights on the host, and copy each layer's to the device when it computes (stage 3)."""

    config: str | None = None
    """DeepSpeed's JSON configuration file. Batch sizes, precision, clipping, optimizer and schedule
    come from the scenario: the file omits them, says `auto`, or equals the scenario."""

    @model_validator(mode="after")
    def _stage_offloads(self) -> DeepSpeedOptions:
        if self.config is None and self.offload_parameters and self.stage != 3:
            raise ValueError("offload_parameters needs stage: 3, which divides weights")
        if self.offload_optimizer and self.stage == 0:
            raise ValueError("offload_optimizer needs a stage of 1 or more")
        return self


class DeepSpeed(Plugin[DeepSpeedOptions]):
    """Divides optimizer state, gradients and weights over devices by DeepSpeed's ZeRO."""

    Options = DeepSpeedOptions
    modes = frozenset({"train"})
    devices = frozenset({"cpu", "cuda"})
    dtypes = frozenset({"float32"})
    makes_working_copies = True
    strategy = "DeepSpeedEngine"

    def claims(self) -> frozenset[str]:
        """Return the hooks of parallelism and engine, which no other plugin may implement."""
        return frozenset({"parallelize_model", "build_engine"})

    def expected_strategy(self, scenario: Scenario) -> str | None:
        """Return the name of DeepSpeed's engine with the requested stage of ZeRO."""
        return f"DeepSpeedEngine ZeRO-{self.stage}"

    def fraction_per_device(self, scenario: Scenario) -> Mapping[str, float]:
        """Return the fraction of weights, gradients and optimizer state that one device holds."""
        on_host = scenario.resources.device == "cuda"
        divided = {"optimizer state": 1, "gradients": 2, "weights": 3}
        parts = {
            part: 1 / scenario.world_size if self.stage >= stage else 1.0
            for part, stage in divided.items()
        }
        if on_host and offloaded(self._settings(), "optimizer"):
            parts |= {"optimizer state": 0.0}
        if on_host and offloaded(self._settings(), "param"):
            parts |= {"weights": 0.0}
        return parts

    def fingerprint(self, experiment: Experiment) -> Any:
        """Return the content of the configuration file; None if the options name no file."""
        return read_config(self.options.config) if self.options.config else None

    @property
    def stage(self) -> int:
        """Stage of ZeRO, from the options or else from the configuration file."""
        return stage_of(self._settings())

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why DeepSpeed cannot train this scenario.

        Raises ScenarioError if the configuration file contradicts the scenario or the options.
        """
        scenario = experiment.scenario
        contradictions(self.options.config, scenario, self.options.model_dump())
        if scenario.train.precision == "fp16-autocast":
            yield "fp16-autocast needs a gradient scaler, and DeepSpeed has another; use bf16"
        if scenario.optimizer.options.get("optimizer_in_backward"):
            yield "DeepSpeed updates after the backward pass; take optimizer_in_backward out"
        if self.stage == 0 and scenario.train.keeps_master_weights:
            yield "stage 0 keeps no float32 weights beside bfloat16 ones as the others do; use 1"

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import DeepSpeed here, so that its memory is counted as memory of imports."""
        from accel_bench_deepspeed.impl.process import import_deepspeed

        import_deepspeed(run)

    @hookimpl
    def parallelize_model(self, run: Run) -> Any:
        """Return the model unchanged: DeepSpeed wraps it together with the optimizer."""
        return run.model

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return DeepSpeed's engine, wrapped as an engine of accel-bench."""
        from accel_bench_deepspeed.impl import DeepSpeedTraining

        engine = DeepSpeedTraining(run, merged(self._settings(), run.scenario))
        run.on_evidence(engine.evidence)
        return engine

    def _settings(self) -> dict[str, Any]:
        return settings(self.options.config, self.options.model_dump())
