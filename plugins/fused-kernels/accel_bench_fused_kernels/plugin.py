"""The plugin `fused-kernels`: its options, its checks and its hooks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt, model_validator

from accel_bench import Experiment, Machine, Options, Plugin, Run, Task, architecture_of, hookimpl
from accel_bench_fused_kernels.rules import RULES, missing

PARTS = ("lora", "rms_norm", "rope", "gated_mlp", "linear_cross_entropy", "cross_entropy")
"""Options that each enable a kind of kernel, called parts, in the order of installation. `lora` is
first, since it covers gated MLPs."""

LOSSES = ("linear_cross_entropy", "cross_entropy")
"""Parts that compute the loss, of which only one can be used; the first is the default."""

TORCH_HAS = frozenset({"rms_norm", "linear_cross_entropy"})
"""Parts with a fused kernel in torch itself."""

INTERPRETER = "TRITON_INTERPRET"
"""Environment variable of Triton's interpreter, which runs kernels in Python on a CPU."""

Library = Literal["liger", "torch"]


class FusedKernelsOptions(Options):
    """Options of `fused-kernels`, which enable the kinds of kernels, called parts.

    Null means on, unless another part is enabled by name. Without any option, all parts are on.
    `rms_norm: true` enables that part alone, and `rope: false` all parts except that one.
    """

    rms_norm: bool | None = None
    """Fuse RMS norms."""

    rope: bool | None = None
    """Fuse the rotary embedding of queries and keys."""

    gated_mlp: bool | None = None
    """Fuse activation and product of gated MLPs; the backward recomputes the activation."""

    cross_entropy: bool | None = None
    """Fuse the loss and its gradient, from logits; off by default with `linear_cross_entropy`,
    which needs no logits."""

    linear_cross_entropy: bool | None = None
    """Fuse output projection, loss and their gradients in chunks of tokens, so that the logits of
    all tokens are never stored."""

    loss_chunk: PositiveInt | None = None
    """Maximum size of a chunk's logits in Liger's `linear_cross_entropy`, as a multiple of the
    hidden states of all tokens (`chunk_mem_const`): larger chunks are faster and need more memory.
    Null is Liger's default, 1; torch's kernel has no such setting."""

    lora: bool | None = None
    """Fuse LoRA's products with the base layer's products in one autograd function."""

    kernels: Literal["auto", "liger", "torch"] = "auto"
    """Library of the kernels: `liger`, Liger's Triton kernels; `torch`, torch's own, for `rms_norm`
    and `linear_cross_entropy`; `auto`, Liger's on a GPU and torch's on a CPU. The part `lora` is
    this plugin's own."""

    @model_validator(mode="after")
    def _one_loss(self) -> FusedKernelsOptions:
        """Raise ValueError if two parts compute the loss, or if the options disable all parts."""
        if self.cross_entropy and self.linear_cross_entropy:
            raise ValueError(
                "cross_entropy and linear_cross_entropy both compute the loss; switch on one"
            )
        if not self.on():
            raise ValueError("every part is switched off; leave the plugin out of the stack")
        if self.loss_chunk and "linear_cross_entropy" not in self.on():
            raise ValueError("loss_chunk needs linear_cross_entropy, which is off")
        return self

    def named(self) -> frozenset[str]:
        """Return the kinds of kernels, such as `rope`, that an option enables explicitly."""
        return frozenset(part for part in PARTS if getattr(self, part))

    def on(self) -> tuple[str, ...]:
        """Return the enabled kinds of kernels, such as `rope`, in the order of `PARTS`."""
        if named := self.named():
            return tuple(part for part in PARTS if part in named)
        left = [part for part in PARTS if getattr(self, part) is not False]
        losses = [part for part in LOSSES if part in left]
        return tuple(part for part in left if part not in losses[1:])


def library_of(
    part: str, wanted: str, device: str, environment: Mapping[str, str]
) -> tuple[Library | None, str]:
    """Return the library of a kind of kernel and an empty text, or None and the reason for None.

    `part` is the kind of kernel, such as `rope`, and `wanted` is `liger`, `torch` or `auto`.
    `device` is a device type such as `cuda`. `environment` are the environment variables of the
    computing process.
    """
    triton = device == "cuda" or environment.get(INTERPRETER) == "1"
    if wanted == "liger" or (wanted == "auto" and triton):
        if triton:
            return "liger", ""
        return None, f"Liger's kernels need a GPU (or {INTERPRETER}=1, for tests)"
    if part not in TORCH_HAS:
        return None, "torch has no kernel for it, and Liger's need a GPU"
    if part == "linear_cross_entropy" and not _torch_is_at_least(2, 13):
        return None, "torch has it from 2.13 on"
    return "torch", ""


def no_loss_of_model(task: Task[Any] | None) -> str:
    """Return the reason why a task does not use the model's own loss; empty if it does use it."""
    if task is None or task.uses_loss_of_model():
        return ""
    return f"task {task.name} computes its loss outside of the model"


class FusedKernels(Plugin[FusedKernelsOptions]):
    """Fused kernels in place of a model's modules and functions, by rules of its architecture."""

    Options = FusedKernelsOptions
    devices = frozenset({"cpu", "cuda"})
    modes = frozenset({"train"})
    conflicts: ClassVar[frozenset[str]] = frozenset({"liger"})
    restricted_model_archs: ClassVar[frozenset[str] | None] = frozenset(RULES)

    # The same sums in another order, with other roundings. Over 30 steps of a small llama and a
    # small gemma the losses differed by 2.3e-7 in float32, by 4e-4 in bfloat16 and by 3e-4 under
    # autocast, with torch's kernels. This leaves a factor of ten.
    loss_tolerance: ClassVar[float | None] = 4e-3

    # Liger's kernels and the part `lora` add in a fixed order. On a GPU torch's
    # linear_cross_entropy does not, for the gradient of an output projection that trains.
    deterministic: ClassVar[bool] = True

    def libraries(
        self, device: str, environment: Mapping[str, str], task: Task[Any] | None = None
    ) -> dict[str, tuple[Library | None, str]]:
        """Return each enabled kind of kernel's library, or None and the reason why it has none.

        The part `lora` is left out. `device` is the device type, `environment` are the environment
        variables of the computing process.
        """
        wanted = self.options.kernels
        other_loss = no_loss_of_model(task)
        return {
            part: (None, other_loss)
            if part in LOSSES and other_loss
            else library_of(part, wanted, device, environment)
            for part in self.options.on()
            if part != "lora"
        }

    @hookimpl
    def check_scenario(
        self, experiment: Experiment, machine: Machine, task: Task[Any] | None
    ) -> Iterator[str]:
        """Yield the reasons why kinds of kernels enabled by name are unavailable.

        If none is enabled by name and no kind is available, yield a sentence with all reasons.
        """
        scenario = experiment.scenario
        device = scenario.resources.device
        named = self.options.named()
        rules = RULES.get(architecture_of(scenario.model) or "")
        reasons = {}
        environment = {**os.environ, **scenario.environment}
        libraries = self.libraries(device, environment, task)
        for part, (library, why) in libraries.items():
            if rules is not None and missing(rules, part):
                reasons[part] = f"{architecture_of(scenario.model)} has none"
            elif library is None:
                reasons[part] = why
            elif part == "linear_cross_entropy" and library == "torch" and self.options.loss_chunk:
                reasons[part] = "loss_chunk is Liger's: torch's kernel chooses its chunks itself"
        if "lora" in self.options.on() and scenario.adapter.use == "none":
            reasons["lora"] = "the scenario has no adapter"
        yield from (f"{part}: {why}" for part, why in reasons.items() if part in named)
        if not named and set(reasons) == set(self.options.on()):
            yield "no part can be had here: " + "; ".join(f"{p}: {r}" for p, r in reasons.items())

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import Liger before the model is built, if its kernels are used, since that takes
        seconds.

        It is imported after transformers, whose modules it imports too.
        """
        libraries = self._libraries_in(run).values()
        if any(library == "liger" for library, _ in libraries):
            from accel_bench_fused_kernels.impl import liger_kernels  # noqa: F401

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Install the enabled kinds of fused kernels in the model, in place."""
        from accel_bench_fused_kernels.impl import FusedModel

        fused = FusedModel(run.model, self.options, self._libraries_in(run))
        run.on_close(fused.undo)
        fused.install()
        run.on_evidence(fused.evidence)
        if run.device.type == "cuda":
            from accel_bench_fused_kernels.impl.launched_kernels import kernels_seen

            run.on_evidence(lambda: {"kernels_seen": kernels_seen(run)})

    def _libraries_in(self, run: Run) -> dict[str, tuple[Library | None, str]]:
        return self.libraries(run.device.type, os.environ, run.task)


def _torch_is_at_least(major: int, minor: int) -> bool:
    from importlib import metadata

    parts = metadata.version("torch").split(".")
    return (int(parts[0]), int(parts[1])) >= (major, minor)
