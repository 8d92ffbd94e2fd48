"""Does what is trained get a gradient? Looked at once, on the first real optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from accel_bench.effective import GradientFlow
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.attention_kernels import attention_kernels
from accel_bench.modeling.tensors import dtype_name
from accel_bench.run import Run
from accel_bench.worker.flops.trace import EXPERT
from accel_bench.worker.verify.recomputation import Recomputation

NO_BACKWARD = -1
"""Torch's number of the backward pass that is running, where none is."""


class FirstStepProbe:
    """Looks at gradients and parameters on the first real optimizer step, once, and then goes away.

    Only that step shows a cut gradient: a few steps later cut runs reach every tensor too. A step
    that a gradient scaler skips is none. It works for any engine, through torch's hooks on all
    optimizers, and is gone before the window.
    """

    def __init__(self, run: Run) -> None:
        self.flow: GradientFlow | None = None
        """Gradients of the first step; None before it."""

        self.matmul_dtype: str | None = None
        """Dtype in which the output projection answered."""

        self.use_cache: bool | None = None
        """Whether the first forward returned a key-value cache."""

        self.padding_free: bool | None = None
        """Whether positions started again within a row of the first forward."""

        self.attention_kernels: dict[str, int] | None = None
        """Attention kernels of the first forward, with their number; None where none is seen."""

        self._run = run
        self._watched: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self._earlier: dict[str, float | None] = {}
        """Norms of gradients that were used and freed within the backward pass."""

        self._used_experts: set[str] | None = None
        self._recomputation = Recomputation()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *self._watch_forward(),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._run.recomputes_last_matmul = self._recomputation.recomputes

    def check(self) -> None:
        """Raise InvalidRunError when no optimizer has taken a step."""
        if self.flow is None:
            raise InvalidRunError(["no optimizer took a step, so nothing was trained"])

    def _watch_forward(self) -> list[Any]:
        """Look into the first forward, as far as that leaves no trace.

        A hook inside a compiled region would be compiled, and compiled again without it when it
        goes: a model that is compiled as a whole is not looked into, nor are compiled blocks.
        """
        model = self._run.unwrapped_model
        if is_compiled(model):
            return []
        handles = [model.register_forward_hook(self._see_model, with_kwargs=True)]
        linear = _output_projection(model)
        if linear is not None and not is_compiled(linear):
            handles.append(linear.register_forward_hook(self._see_matmul))
        if not any(is_compiled(module) for module in model.modules()):
            self._used_experts = set()
            handles += self._recomputation.watch(model)
            modules = dict(model.named_modules())
            handles += [
                modules[unit].register_forward_hook(self._see_expert(unit))
                for unit in dict(_units(model))
                if expert_list(unit)
            ]
        return handles

    def _see_model(self, module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
        """Whether sequences share a row, whether a cache is kept, and which kernels attend."""
        if self.use_cache is None:
            self.use_cache = getattr(output, "past_key_values", None) is not None
            self.padding_free = _starts_again(keywords.get("position_ids"))
            loss = getattr(output, "loss", None)
            if loss is not None:
                self.attention_kernels = attention_kernels(loss) or None

    def _see_matmul(self, module: Any, inputs: Any, output: Any) -> None:
        self.matmul_dtype = dtype_name(output.dtype)

    def _see_expert(self, name: str) -> Any:
        """A hook that remembers that a module of an expert got tokens."""

        def see(module: Any, inputs: Any, output: Any) -> None:
            if self._used_experts is not None and inputs and inputs[0].numel():
                self._used_experts.add(name)

        return see

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        """Look at all gradients; a step that the optimizer is told to skip is not the first.

        A step within the backward pass has only its own, which are gone after it: what it shows is
        kept until the engine takes the step that ends the pass.
        """
        skipped = getattr(optimizer, "found_inf", None)
        if self.flow is not None or (skipped is not None and bool(skipped)):
            return
        model = self._run.unwrapped_model
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        norms = _gradient_norms(trained, getattr(optimizer, "grad_scale", None))
        if torch._C._current_graph_task_id() != NO_BACKWARD:
            self._earlier |= {name: norm for name, norm in norms.items() if norm is not None}
            self._watch(trained)
            return
        norms |= self._earlier
        without = [name for name, members in _units(model) if not any(map(norms.get, members))]
        idle = [name for name in without if self._is_idle_expert(name, without)]
        cut = [name for name in without if name not in idle]
        self.flow = GradientFlow(
            trained_tensors=len(trained),
            tensors_with_gradient=sum(bool(norm) for norm in norms.values()),
            modules_without_gradient=tuple(cut),
            experts_without_tokens=tuple(idle),
            gradient_norms=norms,
        )
        self._watch(trained)
        reasons = _flow_problems(norms, cut)
        if reasons:
            raise InvalidRunError(reasons)

    def _is_idle_expert(self, name: str, without: list[str]) -> bool:
        """Whether a module belongs to an expert that got no tokens, which needs no gradient.

        Where compiled experts cannot be watched, it is enough that another one of the list got a
        gradient.
        """
        experts = expert_list(name)
        if not experts:
            return False
        if self._used_experts is not None:
            return name not in self._used_experts
        units = [unit for unit, _ in _units(self._run.unwrapped_model)]
        return any(expert_list(unit) == experts and unit not in without for unit in units)

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
        if self.flow is None:
            return
        changed = any(
            bool(parameter.detach().flatten()[place] != before)
            for parameter, place, before in self._watched
        )
        self.flow = self.flow.model_copy(update={"parameters_changed": changed})
        watched, self._watched = len(self._watched), []
        self.remove()
        if not changed:
            raise InvalidRunError(
                [f"the first optimizer step changed none of the {watched} weights looked at"]
            )


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` was called, or `torch.compile` wrapped it."""
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or "_orig_mod" in module._modules


def expert_list(name: str) -> str:
    """The list of experts that a module of that name belongs to; empty for none."""
    found = EXPERT.match(f"{name}.")
    return found["list"] if found else ""


def _output_projection(model: torch.nn.Module) -> torch.nn.Module | None:
    """What makes logits, or else the first linear."""
    output: torch.nn.Module | None = getattr(model, "get_output_embeddings", lambda: None)()
    linears = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return output if output is not None else next(linears, None)


def _starts_again(positions: Any) -> bool:
    """Whether positions fall within a row: several sequences lie in it, one after the other."""
    if not isinstance(positions, torch.Tensor) or positions.shape[-1] < 2:
        return False
    return bool((positions[..., 1:] < positions[..., :-1]).any())


def _gradient_norms(
    trained: list[tuple[str, torch.Tensor]], scale: torch.Tensor | None
) -> dict[str, float | None]:
    """L2 norm of each trained tensor's gradient; None for one without a gradient, or not finite.

    `scale` is by what a loss scaler has multiplied the gradients, where the optimizer itself is to
    divide by it.
    """
    with_gradient = [(name, p.grad) for name, p in trained if p.grad is not None]
    norms: dict[str, float | None] = {name: None for name, _ in trained}
    divisor = 1.0 if scale is None else float(scale)
    for name, gradient in with_gradient:
        norm = float(gradient.detach().float().norm()) / divisor
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
