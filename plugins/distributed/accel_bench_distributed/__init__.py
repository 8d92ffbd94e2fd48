"""The plugin `mesh`: sharding of a model over ranks, on torch's DeviceMesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from accel_bench import Experiment, Machine, Options, Plugin, Run, Scenario, hookimpl
from accel_bench.errors import ScenarioError
from accel_bench_distributed.sizes import Sizes, fill

DIMENSIONS = ("replicate", "shard", "tensor", "expert")
"""Options that set the sizes of the mesh's dimensions."""

Size = Literal["auto"] | int


class MeshOptions(Options):
    """Options of `mesh`: sizes of its dimensions, and FSDP2's settings."""

    replicate: Size = 1
    """Number of replicas of the sharded model, with averaged gradients (HSDP with `shard`)."""

    shard: Size = "auto"
    """Number of devices over which FSDP2 shards weights, gradients and optimizer state, block by
    block.

    One size may be `auto`, which uses the remaining devices; `shard` is 1 if another is `auto`.
    """

    tensor: Size = 1
    """Number of devices that share each matrix, by the model's own tensor-parallel plan."""

    expert: Size = 1
    """Number of devices that share the experts of each layer and compute one batch together.

    With `tensor` above 1 it must be the same number, of the same devices.
    """

    dispatch: bool = False
    """Let the devices of `expert` take batches of their own, and send each token to the devices of
    its experts (all-to-all); FSDP2 shards all other weights over the same devices."""

    context: int = Field(1, ge=1)
    """Number of devices that share a sequence; above 1 is not supported, as the README explains."""

    reshard_after_forward: bool = True
    """Free the weights of a block after its forward pass, and gather them again for its backward
    (ZeRO-3); false keeps them (ZeRO-2)."""

    reduce_dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype in which gradients are averaged; null is the dtype of the computation."""

    cpu_offload: bool = False
    """Keep sharded weights, gradients and optimizer state on the host; the optimizer runs there."""

    @model_validator(mode="before")
    @classmethod
    def _shard_gives_way(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        filled = any(raw.get(name) == "auto" for name in DIMENSIONS) or raw.get("dispatch") is True
        return {"shard": 1, **raw} if filled else raw

    @model_validator(mode="after")
    def _sizes_fit(self) -> MeshOptions:
        given = {name: getattr(self, name) for name in DIMENSIONS}
        if [*given.values()].count("auto") > 1:
            raise ValueError("only one size of the mesh can be auto")
        if any(size != "auto" and size < 1 for size in given.values()):
            raise ValueError("sizes of the mesh are 1 or more, or auto")
        if self.dispatch and (self.expert == 1 or {self.replicate, self.shard, self.tensor} != {1}):
            raise ValueError(
                "dispatch is for experts that are divided over all devices: set expert, and leave "
                "replicate, shard and tensor out"
            )
        if self.dispatch and self.cpu_offload:
            raise ValueError("dispatch keeps experts on their devices: leave cpu_offload out")
        batch = {self.tensor, self.expert} - {1}
        if len(batch) > 1:
            raise ValueError(
                "tensor and expert are of the same devices: give both the same number, or one of "
                "them"
            )
        return self


class Mesh(Plugin[MeshOptions]):
    """Shards the model, its matrices or its experts over the devices, on torch's DeviceMesh."""

    Options = MeshOptions
    modes = frozenset({"train"})
    devices = frozenset({"cpu", "cuda"})
    makes_working_copies = True

    def expected_strategy(self, scenario: Scenario) -> str | None:
        """Return the parallel model's class name: `FSDPModule`, or `DTensor` without FSDP2."""
        sharded = self.sizes(scenario.world_size).shards_blocks(scenario.train.keeps_master_weights)
        return "FSDPModule" if sharded else "DTensor"

    def data_parallel(self, scenario: Scenario) -> int:
        """Return the number of rank groups, each of which has its own batches."""
        sizes = self._fill(scenario.world_size)
        return scenario.data_parallel if isinstance(sizes, str) else sizes.data_parallel

    def fraction_per_device(self, scenario: Scenario) -> float | None:
        """Return the fraction of the model that one device holds, 0 if offloaded to the host; None
        if the mesh's sizes do not fit the number of devices."""
        sizes = self._fill(scenario.world_size)
        if isinstance(sizes, str):
            return None
        offloaded = self.options.cpu_offload and scenario.resources.device == "cuda"
        return 0.0 if offloaded else sizes.fraction

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the mesh does not fit the devices or the model."""
        from accel_bench_distributed.constraints import problems

        sizes = self._fill(experiment.scenario.world_size)
        if self.options.context > 1:
            yield (
                f"context {self.options.context}: torch's context parallelism has kernels for "
                "CUDA alone, takes no mask of padding, and this plugin does not offer it (up to "
                "torch 2.13); use shard, or tensor"
            )
        elif isinstance(sizes, str):
            yield sizes
        else:
            asked = {name for name, size in self._given().items() if size != 1}
            yield from problems(experiment.scenario, sizes, asked)
        if self.options.cpu_offload and experiment.scenario.resources.device == "cpu":
            yield "cpu_offload: on a CPU the weights are on the host already; leave it out"

    @hookimpl
    def parallelize_model(self, run: Run) -> Any:
        """Shard the model in place, and return it."""
        from accel_bench_distributed.impl import Sharding

        sharding = Sharding(run, self.sizes(run.world_size), self.options)
        run.on_evidence(sharding.evidence)
        return sharding.model

    def sizes(self, devices: int) -> Sizes:
        """Return the mesh sizes for a number of devices.

        Raises ScenarioError if the options' sizes do not fit this number.
        """
        sizes = self._fill(devices)
        if isinstance(sizes, str):
            raise ScenarioError(f"mesh: {sizes}")
        return sizes

    def _fill(self, devices: int) -> Sizes | str:
        return fill(self._given(), devices, self.options.dispatch)

    def _given(self) -> dict[str, int | None]:
        given = {name: getattr(self.options, name) for name in DIMENSIONS}
        return {name: None if size == "auto" else size for name, size in given.items()}
