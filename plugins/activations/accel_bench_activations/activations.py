"""The stack plugins `activation-checkpointing` and `activation-offload`, which save memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from accel_bench import Experiment, Machine, Options, Plugin, Run, hookimpl
from accel_bench.errors import InvalidRunError, did_you_mean

if TYPE_CHECKING:
    from accel_bench_activations.checkpointing_impl import Checkpointing
    from accel_bench_activations.offload_impl import Offloading


GROUPS: dict[str, tuple[str, ...]] = {
    "matmuls": (
        "aten.mm",
        "aten.addmm",
        "aten.bmm",
        "aten.baddbmm",
        "aten._grouped_mm",
        "aten._scaled_mm",
        "aten._scaled_grouped_mm",
        "aten._int_mm",
    ),
    "attention": (
        "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_fused_attention_overrideable",
        "aten._flash_attention_forward",
        "aten._efficient_attention_forward",
        "aten._cudnn_attention_forward",
        "higher_order.flex_attention",
        "flash_attn._flash_attn_forward",
        "flash_attn._flash_attn_varlen_forward",
        "torch_attn._varlen_attn",
    ),
}
"""Names of torch operations by group (`matmuls`, `attention`)."""


class CheckpointingOptions(Options):
    """Options of `activation-checkpointing`: the blocks to recompute and the outputs to keep."""

    policy: Literal["full", "every", "selective"] = "full"
    """Checkpointing policy. `full`: recompute every block from its input, as
    `train.gradient_checkpointing` does; `every`: recompute one block in `every`; `selective`:
    recompute every block except the outputs of the operations in `keep`."""

    every: int = Field(2, ge=2)
    """Interval of the policy `every`: the first of each `every` blocks is recomputed."""

    keep: tuple[str, ...] = tuple(GROUPS)
    """Operations whose outputs the policy `selective` keeps: the groups `matmuls` and `attention`,
    or torch's names of operations, such as `aten.silu`."""

    @model_validator(mode="after")
    def _belong_together(self) -> CheckpointingOptions:
        for field, policy in (("every", "every"), ("keep", "selective")):
            if field in self.model_fields_set and self.policy != policy:
                raise ValueError(f"{field} is for policy {policy}, and policy is {self.policy}")
        if not self.keep:
            raise ValueError("keep names nothing; that is policy full")
        for name in self.keep:
            if name not in GROUPS and "." not in name:
                raise ValueError(
                    f"keep: {name!r} is neither {' nor '.join(GROUPS)} nor an operation with its "
                    f"namespace, such as aten.silu{did_you_mean(name, GROUPS)}"
                )
        return self


class ActivationCheckpointing(Plugin[CheckpointingOptions]):
    """Recompute the activations of all blocks, of some, or in part in the backward pass.

    Checkpointing is non-reentrant and restores the random state: gradients are equal bit for bit.
    """

    Options = CheckpointingOptions
    modes = frozenset({"train"})
    devices = frozenset({"cpu", "cuda"})
    deterministic: ClassVar[bool] = True
    _checkpointing: Checkpointing | None = None

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield a reason if the scenario sets `train.gradient_checkpointing`."""
        if experiment.scenario.train.gradient_checkpointing:
            yield (
                "train.gradient_checkpointing is true, which computes every block again already; "
                "in this stack set it to false: {set: {train.gradient_checkpointing: false}, "
                f"use: [{{use: {self.name}, policy: {self.options.policy}}}]}}"
            )

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Enable checkpointing in the model's blocks; weights and modules are unchanged."""
        from accel_bench_activations.checkpointing_impl import Checkpointing

        self._checkpointing = checkpointing = Checkpointing(run.model, self.options)
        run.on_close(checkpointing.undo)
        run.on_evidence(checkpointing.evidence)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Stop counting recomputations before the measured window, which counting would disturb."""
        if self._checkpointing is not None:
            self._checkpointing.stop_counting()


class OffloadOptions(Options):
    """Options of `activation-offload`: the activations to offload."""

    minimum_bytes: int = Field(1_048_576, gt=0)
    """Size in bytes below which an activation stays on the device: its copy would cost too much."""


class ActivationOffload(Plugin[OffloadOptions]):
    """Offload the decoder's saved activations to pinned host memory until the backward pass.

    Copies are queued on the compute stream, since torch maintains no implementation that prefetches
    on another stream. So this plugin saves memory, and costs time. With activation checkpointing,
    it offloads the inputs of the blocks.
    """

    Options = OffloadOptions
    modes = frozenset({"train"})
    devices = frozenset({"cuda"})
    deterministic: ClassVar[bool] = True
    _offloading: Offloading | None = None

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Replace the decoder's forward by one under hooks that offload its saved tensors."""
        from accel_bench_activations.offload_impl import Offloading

        self._offloading = offloading = Offloading(
            run.model, self.options.minimum_bytes, run.device.type
        )
        run.on_close(offloading.undo)
        run.on_evidence(offloading.evidence)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Stop counting offloaded tensors. Raises InvalidRunError if the warm-up offloaded none."""
        if self._offloading is not None and not self._offloading.stop_counting():
            raise InvalidRunError(
                [
                    f"{self.name} moved nothing: the decoder kept no tensor of at least "
                    f"{self.options.minimum_bytes} bytes, or is compiled as a part of the whole "
                    "model; lower minimum_bytes, or compile blocks"
                ]
            )
