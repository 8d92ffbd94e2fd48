"""The plugin `liger`: Liger's kernels alone, applied by Liger's own patching function."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import model_validator

from accel_bench import Experiment, Machine, Options, Plugin, Run, Task, hookimpl
from accel_bench_fused_kernels.plugin import INTERPRETER, no_loss_of_model


class LigerOptions(Options):
    """Options of Liger's patching; null keeps Liger's default for the architecture."""

    rope: bool | None = None
    """Fuse the rotary embedding."""

    rms_norm: bool | None = None
    """Fuse RMS norms."""

    swiglu: bool | None = None
    """Fuse gated MLPs and experts with silu; for models with gelu, this sets Liger's `geglu`."""

    cross_entropy: bool | None = None
    """Fuse the loss from logits: replaces `torch.nn.functional.cross_entropy` everywhere."""

    fused_linear_cross_entropy: bool | None = None
    """Fuse output projection and loss; Liger supports it for every architecture but granite."""

    @model_validator(mode="after")
    def _one_loss(self) -> LigerOptions:
        """Raise ValueError if both fused losses are on, which Liger refuses by an assertion."""
        if self.cross_entropy and self.fused_linear_cross_entropy:
            raise ValueError(
                "cross_entropy and fused_linear_cross_entropy both compute the loss; switch on one"
            )
        return self


class Liger(Plugin[LigerOptions]):
    """Liger's kernels in a transformers model, by Liger's own patching of that model."""

    Options = LigerOptions
    devices = frozenset({"cpu", "cuda"})
    modes = frozenset({"train"})
    conflicts: ClassVar[frozenset[str]] = frozenset({"fused-kernels"})
    restricted_model_archs: ClassVar[frozenset[str] | None] = frozenset(
        {
            "Gemma2ForCausalLM",
            "Gemma3ForCausalLM",
            "GemmaForCausalLM",
            "GraniteForCausalLM",
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "Phi3ForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen3ForCausalLM",
        }
    )

    # As for `fused-kernels`, whose kernels these are.
    loss_tolerance: ClassVar[float | None] = 4e-3
    deterministic: ClassVar[bool] = True

    @hookimpl
    def check_scenario(
        self, experiment: Experiment, machine: Machine, task: Task[Any] | None
    ) -> Iterator[str]:
        """Yield the reasons why Liger cannot be used, such as a machine without a GPU."""
        scenario = experiment.scenario
        device = scenario.resources.device
        environment = {**os.environ, **scenario.environment}
        if device == "cpu" and environment.get(INTERPRETER) != "1":
            yield f"Liger's kernels need a GPU (or {INTERPRETER}=1, for tests)"
        losses = ("cross_entropy", "fused_linear_cross_entropy")
        if reason := no_loss_of_model(task):
            yield from (f"{loss}: {reason}" for loss in losses if getattr(self.options, loss))
        keeps = any(
            use.use == "activation-checkpointing" and use.options.get("policy") == "selective"
            for use in experiment.stack.uses
        )
        if keeps and self.options.rope is not False:
            yield (
                "Liger's rotary embedding writes over products that selective checkpointing keeps, "
                "so gradients would be wrong; set rope to false, or use fused-kernels"
            )

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import Liger before the model is built, since that takes seconds."""
        import liger_kernel.transformers  # noqa: F401

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Patch the model in place by Liger, and record the changes."""
        from accel_bench_fused_kernels.impl.liger_patch import LigerPatch

        wanted = self.options.model_dump(exclude_none=True)
        patch = LigerPatch(run.model)
        run.on_close(patch.undo)
        run.on_evidence(patch.evidence)
        patch.apply(wanted)
