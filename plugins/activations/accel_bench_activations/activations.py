"""Activations until the backward pass: the stack plugins `activation-checkpointing`
and `activation-offload`."""

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
"""Operations by kind; one that this torch, or what is installed, does not have is left out."""


class CheckpointingOptions(Options):
    """Which blocks are computed again in the backward pass, and what of them is kept."""

    policy: Literal["full", "every", "selective"] = "full"
    """`full`: every block keeps its input alone, as with `train.gradient_checkpointing`; `every`:
    so does one block in `every`; `selective`: all blocks keep the outputs of `keep` as well."""

    every: int = Field(2, ge=2)
    """For `every`: of so many blocks the first is computed again."""

    keep: tuple[str, ...] = tuple(GROUPS)
    """For `selective`: operations whose outputs are kept. `matmuls` and `attention` stand for all
    of their kind; others are named as torch does, such as `aten.silu`."""

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
    """Activations are computed again in the backward pass: of all blocks, of some, or in part.

    Non-reentrant, with the same random numbers, so gradients stay what they are, bit for bit.
    """

    Options = CheckpointingOptions
    modes = frozenset({"train"})
    devices = frozenset({"cpu", "cuda"})
    deterministic: ClassVar[bool] = True
    _checkpointing: Checkpointing | None = None

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Refuse a model whose blocks core already computes again."""
        if experiment.scenario.train.gradient_checkpointing:
            yield (
                "train.gradient_checkpointing is true, which computes every block again already; "
                "in this stack set it to false: {set: {train.gradient_checkpointing: false}, "
                f"use: [{{use: {self.name}, policy: {self.options.policy}}}]}}"
            )

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Set the blocks up; the model's weights and modules stay."""
        from accel_bench_activations.checkpointing_impl import Checkpointing

        self._checkpointing = checkpointing = Checkpointing(run.model, self.options)
        run.on_close(checkpointing.undo)
        run.on_evidence(checkpointing.evidence)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Stop counting: nothing but the work is left in the window."""
        if self._checkpointing is not None:
            self._checkpointing.stop_counting()


class OffloadOptions(Options):
    """What leaves the device."""

    minimum_bytes: int = Field(1_048_576, gt=0)
    """Tensors below this size stay: a copy of them costs more than it frees."""


class ActivationOffload(Plugin[OffloadOptions]):
    """What the decoder keeps for its backward pass waits on the host, in pinned memory.

    Copies are queued on the stream that computes: torch has no kept implementation that prefetches
    on another one. So they cost their time, and memory is what is gained. With activation
    checkpointing it is the blocks' inputs that wait there.
    """

    Options = OffloadOptions
    modes = frozenset({"train"})
    devices = frozenset({"cuda"})
    deterministic: ClassVar[bool] = True
    _offloading: Offloading | None = None

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Bind the decoder's forward."""
        from accel_bench_activations.offload_impl import Offloading

        self._offloading = offloading = Offloading(
            run.model, self.options.minimum_bytes, run.device.type
        )
        run.on_close(offloading.undo)
        run.on_evidence(offloading.evidence)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Stop counting. Raises InvalidRunError when nothing has been moved in the warm-up."""
        if self._offloading is not None and not self._offloading.stop_counting():
            raise InvalidRunError(
                [
                    f"{self.name} moved nothing: the decoder kept no tensor of at least "
                    f"{self.options.minimum_bytes} bytes, or is compiled as a part of the whole "
                    "model; lower minimum_bytes, or compile blocks"
                ]
            )
