"""The plugin `moe`: the implementation of a mixture of experts' matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from accel_bench import Experiment, Machine, Options, Plugin, Run, hookimpl

GROUPED_CAPABILITY = (8, 0)
"""Oldest CUDA compute capability on which transformers uses torch's grouped product."""


class MixtureOfExpertsOptions(Options):
    """Options of `moe`: the implementation of experts, by transformers' names."""

    experts: Literal["eager", "batched_mm", "grouped_mm"] = "grouped_mm"
    """Implementation of the products. `eager`: a loop over experts; `batched_mm`: a copy of the
    expert's weights for every token; `grouped_mm`: tokens sorted by expert, and one grouped product
    per matrix."""


class MixtureOfExperts(Plugin[MixtureOfExpertsOptions]):
    """Chooses how experts multiply, among what transformers offers."""

    Options = MixtureOfExpertsOptions
    devices = frozenset({"cpu", "cuda"})
    deterministic: ClassVar[bool] = True
    restricted_model_archs: ClassVar[frozenset[str] | None] = frozenset(
        {
            "GraniteMoeForCausalLM",
            "MixtralForCausalLM",
            "OlmoeForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen3MoeForCausalLM",
        }
    )

    # It packs experts one by one, and multiplies them one after the other.
    conflicts = frozenset({"autogptq"})

    # What they replace in experts depends on the implementation that they find.
    before = ("fused-kernels", "liger")

    # Over 30 steps of small models the losses of `grouped_mm` and `batched_mm` differed from those
    # of `eager` by up to 1.3e-7 in float32 and 4.8e-4 in bfloat16. This leaves a factor of ten.
    loss_tolerance: ClassVar[float | None] = 5e-3

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why `grouped_mm` would not use torch's grouped product."""
        if self.options.experts != "grouped_mm":
            return
        scenario = experiment.scenario
        stored, computed = scenario.model.dtype, scenario.train.autocast_dtype
        if computed not in (None, stored):
            yield (
                f"torch's grouped_mm does not follow autocast: experts would be computed in "
                f"{stored}; set model.dtype: {computed}, or experts: batched_mm"
            )
        if scenario.resources.device == "cuda":
            yield from _too_old(machine, scenario.resources.devices)

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Switch the implementation of the model's experts in place."""
        from accel_bench_moe.impl import ExpertsSwitch

        switch = ExpertsSwitch(run.model, self.options.experts)
        run.on_close(switch.undo)
        run.on_evidence(switch.evidence)


def _too_old(machine: Machine, count: int) -> Iterator[str]:
    """Yield a reason for each of the first `count` GPUs that is too old for the grouped product.

    On such GPUs transformers would loop over the experts instead.
    """
    for gpu in machine.gpus[:count]:
        if gpu.compute_capability < GROUPED_CAPABILITY:
            actual, needed = (
                ".".join(map(str, pair)) for pair in (gpu.compute_capability, GROUPED_CAPABILITY)
            )
            yield (
                f"torch's grouped_mm needs compute capability {needed}, {gpu.name} has {actual}; "
                "use experts: eager or batched_mm"
            )
