"""What really holds when the clock starts, read back from torch and held against what was asked."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from accel_bench.errors import InvalidRunError
from accel_bench.run import Run
from accel_bench.scenario.environment import recorded

ACCELERATOR_LIBRARIES = (
    "apex",
    "auto_gptq",
    "bitsandbytes",
    "deepspeed",
    "flash_attn",
    "gptqmodel",
    "liger_kernel",
    "torchao",
    "transformer_engine",
    "xformers",
)
"""Libraries whose import alone can change how a model runs; which were imported is recorded."""


class FirstStepProbe:
    """Looks at gradients and parameters on the first real optimizer step, once, and then goes away.

    Only that step shows a cut gradient: a few steps later cut runs reach every tensor too. It works
    for any engine, through torch's hooks on all optimizers, and is gone before the window.
    """

    def __init__(self, run: Run) -> None:
        self.findings: dict[str, Any] = {}
        self.matmul_dtype: str | None = None
        self._run = run
        self._watched: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *self._watch_matmul(),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check(self) -> None:
        """Raise InvalidRunError when no optimizer has taken a step."""
        if not self.findings:
            raise InvalidRunError(["no optimizer took a step, so nothing was trained"])

    def _watch_matmul(self) -> list[Any]:
        """See in which dtype the output projection answers: what is computed with, if not stored.

        A hook inside a compiled region would be compiled, and compiled again without it when it
        goes: a model that is compiled as a whole is not looked into.
        """
        model = self._run.unwrapped_model
        output = getattr(model, "get_output_embeddings", lambda: None)()
        linears = (m for m in model.modules() if isinstance(m, torch.nn.Linear))
        linear = output if output is not None else next(linears, None)
        if linear is None or _is_compiled(model) or _is_compiled(linear):
            return []

        def see(module: Any, inputs: Any, output: Any) -> None:
            self.matmul_dtype = str(output.dtype).removeprefix("torch.")

        return [linear.register_forward_hook(see)]

    def _before_step(self, *_: Any) -> None:
        model = self._run.unwrapped_model
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        norms = _gradient_norms(trained)
        cut = [name for name, members in _units(model) if not any(norms.get(m) for m in members)]
        self.findings = {
            "trained_tensors": len(trained),
            "tensors_with_gradient": sum(bool(norm) for norm in norms.values()),
            "modules_without_gradient": cut,
            "gradient_norms": norms,
        }
        self._watch(trained)
        reasons = _flow_problems(norms, cut)
        if reasons:
            raise InvalidRunError(reasons)

    def _watch(self, trained: list[tuple[str, torch.Tensor]]) -> None:
        """Remember two elements of each tensor, since a whole one may not fit a second time.

        That with the largest gradient, and the smallest that has one: an update that is rounded
        away beside a large weight still shows in a small one.
        """
        for _, parameter in trained:
            if parameter.grad is None:
                continue
            weights, gradient = parameter.detach().flatten(), parameter.grad.flatten()
            smallest = torch.where(gradient != 0, weights.abs(), float("inf")).argmin()
            for place in {int(gradient.abs().argmax()), int(smallest)}:
                self._watched.append((parameter, place, weights[place].clone()))

    def _after_step(self, *_: Any) -> None:
        changed = any(
            bool(parameter.detach().flatten()[place] != before)
            for parameter, place, before in self._watched
        )
        self.findings["parameters_changed"] = changed
        watched, self._watched = len(self._watched), []
        self.remove()
        if not changed:
            raise InvalidRunError(
                [f"the first optimizer step changed none of the {watched} weights looked at"]
            )


def read_realised(run: Run) -> dict[str, Any]:
    """Read back dtypes, attention, strategy, optimizer, checkpointing, threads and libraries."""
    model = run.unwrapped_model
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return {
        "model_class": type(model).__name__,
        "weight_dtypes": _elements_by_dtype(p for p in model.parameters() if not p.requires_grad),
        "trained_dtypes": _elements_by_dtype(p for p in model.parameters() if p.requires_grad),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "gradient_checkpointing": _recomputes(model),
        "strategy": "none" if run.model is model else type(run.model).__name__,
        "world_size": torch.distributed.get_world_size() if group else 1,
        "backend": torch.distributed.get_backend() if group else None,
        "optimizer": type(run.optimizer).__name__,
        "device": str(next(model.parameters()).device),
        "threads": torch.get_num_threads(),
        "training": bool(model.training),
        "libraries": sorted(name for name in ACCELERATOR_LIBRARIES if name in sys.modules),
        "environment": recorded(os.environ),
    }


def differences(run: Run, realised: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What differs from what was asked: reasons for `degraded`, and reasons for `invalid`."""
    scenario = run.scenario
    degraded: list[str] = []
    invalid: list[str] = []
    if realised["attention"] not in (None, scenario.model.attention):
        degraded.append(
            f"attention is {realised['attention']}, asked was {scenario.model.attention}"
        )
    if realised["gradient_checkpointing"] != scenario.train.gradient_checkpointing:
        degraded.append(
            f"gradient checkpointing is {realised['gradient_checkpointing']}, "
            f"asked was {scenario.train.gradient_checkpointing}"
        )
    stored = {**realised["weight_dtypes"], **realised["trained_dtypes"]}
    if scenario.model.dtype not in stored:
        degraded.append(f"no weight is {scenario.model.dtype}, as asked: {', '.join(stored)}")
    if torch.device(realised["device"]).type != run.device.type:
        invalid.append(f"the model is on {realised['device']}, asked was {run.device}")
    if realised["world_size"] != run.world_size:
        invalid.append(f"{realised['world_size']} processes train, asked were {run.world_size}")
    if run.world_size > 1 and realised["strategy"] == "none":
        invalid.append(f"nothing joins the gradients of {run.world_size} processes")
    if not realised["training"]:
        invalid.append("the model is not in training mode")
    return degraded, invalid


def device_facts(run: Run) -> dict[str, Any]:
    """The device that this rank computes on, as the driver names it: proof of the devices used."""
    if run.device.type != "cuda":
        return {"type": run.device.type, "index": run.local_rank, "name": "cpu", "uuid": ""}
    properties = torch.cuda.get_device_properties(run.device.index)
    return {
        "type": "cuda",
        "index": run.device.index,
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
    }


def _gradient_norms(trained: list[tuple[str, torch.Tensor]]) -> dict[str, float | None]:
    """L2 norm of each trained tensor's gradient; None for one without a gradient, or not finite."""
    with_gradient = [(name, p.grad) for name, p in trained if p.grad is not None]
    norms: dict[str, float | None] = {name: None for name, _ in trained}
    for name, gradient in with_gradient:
        norm = float(gradient.detach().float().norm())
        norms[name] = norm if norm < float("inf") else None
    return norms


def _units(model: torch.nn.Module) -> Iterator[tuple[str, list[str]]]:
    """Modules that must receive a gradient, with the names of their trained tensors.

    A module with an adapter is one unit: on LoRA's first step each lora_A is rightly zero, since B
    is. Any other module counts with the trained tensors that it holds itself.
    """
    covered: set[str] = set()
    # A tied tensor counts once, under the name that named_parameters gives it.
    distinct = dict(model.named_parameters())
    for name, module in model.named_modules():
        if hasattr(module, "adapter_layer_names"):
            members = [f"{name}.{n}" for n, p in module.named_parameters() if p.requires_grad]
            covered.update(members)
            if members:
                yield name, members
    for name, module in model.named_modules():
        own = [(f"{name}.{n}" if name else n, p) for n, p in module.named_parameters(recurse=False)]
        members = [n for n, p in own if n in distinct and p.requires_grad and n not in covered]
        if members:
            yield name, members


def _flow_problems(norms: dict[str, float | None], cut: list[str]) -> list[str]:
    """What makes the run invalid, in sentences."""
    if not any(norms.values()):
        return ["no trained tensor received a gradient on the first step"]
    if cut:
        shown = ", ".join(cut[:5]) + (f" and {len(cut) - 5} more" if len(cut) > 5 else "")
        return [f"the gradient is cut: {len(cut)} trained modules received none: {shown}"]
    return []


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _recomputes(model: torch.nn.Module) -> bool:
    """Whether activations are recomputed; transformers is renaming the property."""
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        value = getattr(model, name, None)
        if value is not None:
            return bool(value)
    return False


def _elements_by_dtype(parameters: Iterator[torch.nn.Parameter]) -> dict[str, int]:
    """Number of elements by dtype, the commonest first."""
    counts: Counter[str] = Counter()
    for parameter in parameters:
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(counts.most_common())
