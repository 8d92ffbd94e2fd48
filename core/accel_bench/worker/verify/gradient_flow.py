"""Check that every trained module receives a gradient before the first real optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from accel_bench.analysis.wording import join_names
from accel_bench.effective import GradientFlow
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.attention_kernels import attention_kernels
from accel_bench.modeling.kept_elsewhere import describe_gradient, kept_elsewhere
from accel_bench.modeling.module_calls import is_compiled
from accel_bench.modeling.sharding import gradient_on_this_rank, is_sharded, on_this_rank, whole
from accel_bench.modeling.tensors import dtype_name
from accel_bench.run_context import Run
from accel_bench.worker.flops.trace import expert_list
from accel_bench.worker.verify.forward_pass import ForwardPass
from accel_bench.worker.verify.recomputation import Recomputation

NO_BACKWARD = -1
"""Torch's id of the current backward pass if there is none."""


class FirstStepProbe:
    """Observer of gradients, parameters and kernels up to the first real optimizer step.

    Only this step shows that a module gets no gradient: a few steps later every tensor may have
    one. A step of another model, with learning rate 0, or that a gradient scaler skips is no real
    step. The probe works for any engine, by torch's hooks on all optimizers, which are removed
    before the window. Attributes are named like fields of `EffectiveConfiguration`, but `flow` is
    `gradient_flow`.
    """

    def __init__(self, run: Run) -> None:
        self.flow: GradientFlow | None = None
        self.matmul_dtype: str | None = None
        self.use_cache: bool | None = None
        self.padding_free: bool | None = None
        self.attention_kernels: dict[str, int] | None = None
        self.optimizers: dict[int, Any] = {}
        """Optimizers that took part in the first step, by object id."""

        self.idle = False
        """True if the model's last optimizer step had learning rate 0; read up to a real one."""

        self._run = run
        self._watched: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self._earlier: dict[str, float | None] = {}
        """Norms of gradients that were freed within the backward pass, by tensor name."""

        self._steps = 0
        self._used_experts: set[str] | None = None
        self._recomputation = Recomputation()
        self.forward = ForwardPass(run)
        """Reading of the first forward pass: dtypes, dropout and random numbers."""

        self._sees_optimizers = register_optimizer_step_pre_hook(self._see_optimizer)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *self._watch_forward(),
        ]

    @property
    def frozen(self) -> bool:
        """True before step number `Run.trains_from`, until which some weights are frozen."""
        return self._steps < self._run.trains_from

    def end_step(self) -> None:
        """Count an ended step; after the first real step, stop recording which optimizers step."""
        self._steps += 1
        if self.flow is not None:
            self._sees_optimizers.remove()

    def remove(self) -> None:
        """Remove all hooks of the probe."""
        self._sees_optimizers.remove()
        self._remove_readers()

    def _remove_readers(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._run.recomputes_last_matmul = self._recomputation.recomputes

    @property
    def matmul_dtypes(self) -> dict[str, int]:
        """Number of plain linear layers by the dtype of their matmul; empty if it was not seen."""
        return self.forward.matmul_dtypes

    def check(self) -> None:
        """Raise InvalidRunError if no optimizer has taken a step."""
        if self.flow is None:
            rate = " with a learning rate other than 0" if self.idle else ""
            raise InvalidRunError([f"no optimizer took a step{rate}, so nothing was trained"])

    def _watch_forward(self) -> list[Any]:
        """Register hooks for the first forward pass; return the hooks' handles.

        In a compiled region a hook would be compiled, and its removal would compile again.
        """
        model = self._run.unwrapped_model
        if is_compiled(model):
            return []
        handles = [model.register_forward_hook(self._see_model, with_kwargs=True)]
        output = getattr(model, "get_output_embeddings", lambda: None)()
        linears = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
        linear = output if output is not None else next(linears, None)
        if linear is not None and not is_compiled(linear):
            handles.append(linear.register_forward_hook(self._see_matmul))
        if not any(is_compiled(module) for module in model.modules()):
            self._used_experts = set()
            handles += [*self._recomputation.watch(model), *self.forward.watch()]
            modules = dict(model.named_modules())
            handles += [
                modules[unit].register_forward_hook(self._see_expert(unit))
                for unit in dict(_units(model))
                if expert_list(unit)
            ]
        return handles

    def _see_model(self, module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
        """Record attention kernels, whether a cache is kept, and whether sequences share a row."""
        if self.use_cache is None:
            self.use_cache = getattr(output, "past_key_values", None) is not None
            self.padding_free = _starts_again(keywords.get("position_ids"))
            loss = getattr(output, "loss", None)
            if loss is not None:
                self.attention_kernels = attention_kernels(loss) or None

    def _see_matmul(self, module: Any, inputs: Any, output: Any) -> None:
        self.matmul_dtype = dtype_name(output.dtype)

    def _see_expert(self, name: str) -> Any:
        """Return a forward hook that records that module `name`, of an expert, got tokens."""

        def see(module: Any, inputs: Any, output: Any) -> None:
            if self._used_experts is not None and inputs and inputs[0].numel():
                self._used_experts.add(name)

        return see

    def _see_optimizer(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in self.optimizers and _updates(optimizer, self._run.unwrapped_model):
            self.optimizers[id(optimizer)] = optimizer

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        """Read all gradients before the first step. Raises InvalidRunError if a module has none.

        Steps that an optimizer skips do not count. An optimizer that steps within the backward pass
        frees its gradients; their norms are kept until the engine's step, which ends the pass.
        """
        if self.flow is not None or self.frozen or id(optimizer) not in self.optimizers:
            return
        self.idle = all(group.get("lr") == 0 for group in optimizer.param_groups)
        if self.idle or bool(getattr(optimizer, "found_inf", None)):
            return
        model = self._run.unwrapped_model
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        norms = _gradient_norms(trained, getattr(optimizer, "grad_scale", None))
        if torch._C._current_graph_task_id() != NO_BACKWARD:
            self._earlier |= {name: norm for name, norm in norms.items() if norm is not None}
            self._watch(trained)
            return
        norms |= self._earlier
        without = [name for name, tensors in _units(model) if not any(map(norms.get, tensors))]
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
        if not any(norms.values()):
            raise InvalidRunError(["no trained tensor received a gradient on the first step"])
        if cut:
            shown = join_names(cut, most=5)
            raise InvalidRunError(
                [f"the gradient is cut: {len(cut)} trained modules received none: {shown}"]
            )

    def _is_idle_expert(self, name: str, without: list[str]) -> bool:
        """Return whether a module belongs to an expert that got no tokens.

        `without` has the names of the modules without a gradient. Compiled experts cannot be
        observed: for them another expert of their list must have a gradient.
        """
        experts = expert_list(name)
        if not experts:
            return False
        if self._used_experts is not None:
            return name not in self._used_experts
        units = [unit for unit, _ in _units(self._run.unwrapped_model)]
        return any(expert_list(unit) == experts and unit not in without for unit in units)

    def _watch(self, trained: list[tuple[str, torch.Tensor]]) -> None:
        """Store a few elements of each trained tensor, to see whether the step changes them.

        A whole copy may not fit in memory. Elements of a sharded tensor are of this rank's shard.
        """
        for _, parameter in trained:
            places = _places(parameter)
            weights = on_this_rank(parameter).flatten()
            self._watched += [(parameter, place, weights[place].clone()) for place in places]

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.flow is None or id(optimizer) not in self.optimizers:
            return
        changed = any(
            bool(on_this_rank(parameter).flatten()[place] != before)
            for parameter, place, before in self._watched
        )
        watched, self._watched = len(self._watched), []
        seen = changed if watched else None
        self.flow = self.flow.model_copy(update={"parameters_changed": seen})
        self._remove_readers()
        if watched and not changed:
            raise InvalidRunError(
                [f"the first optimizer step changed none of the {watched} weights looked at"]
            )


def _updates(optimizer: Any, model: torch.nn.Module) -> bool:
    """Return whether an optimizer updates a model's parameters, or flat tensors that hold them.
    True for any optimizer if the model is sharded or stored elsewhere: it may update copies."""
    parameters = list(model.parameters())
    if any(is_sharded(one) or kept_elsewhere(one) is not None for one in parameters):
        return True
    own = {one.untyped_storage()._cdata for one in parameters}
    updated = (one for group in optimizer.param_groups for one in group["params"])
    return any(one.untyped_storage()._cdata in own for one in updated)


def _starts_again(positions: Any) -> bool:
    """Return whether position ids restart within a row, which then holds several sequences."""
    if not isinstance(positions, torch.Tensor) or positions.shape[-1] < 2:
        return False
    return bool((positions[..., 1:] < positions[..., :-1]).any())


def _places(parameter: torch.Tensor) -> frozenset[int]:
    """Return indices of elements of a parameter, on this rank, that a step should change.

    The set is empty for an empty shard, as of a parameter with fewer rows than ranks.
    """
    kept = kept_elsewhere(parameter)
    if kept is not None:
        return kept.gradient.places if kept.gradient else frozenset()
    gradient = gradient_on_this_rank(parameter)
    if gradient is None or not gradient.numel():
        return frozenset()
    return describe_gradient(on_this_rank(parameter), gradient).places


def _gradient_norms(
    trained: list[tuple[str, torch.Tensor]], scale: torch.Tensor | None
) -> dict[str, float | None]:
    """Return by tensor the L2 norm of its gradient; None without a gradient, or if not finite.

    For a sharded tensor, all ranks add up the norm over all shards. `scale` is the loss scaler's
    factor, if the optimizer itself divides gradients by it.
    """
    norms: dict[str, float | None] = {name: None for name, _ in trained}
    divisor = 1.0 if scale is None else float(scale)
    for name, parameter in trained:
        kept = kept_elsewhere(parameter)
        if kept is not None and kept.gradient is not None:
            norms[name] = kept.gradient.norm
        elif parameter.grad is not None:
            norm = float(whole(parameter.grad.detach().float().norm())) / divisor
            norms[name] = norm if norm < float("inf") else None
    return norms


def _units(model: torch.nn.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each module that must receive a gradient, with its trained tensors' names.

    A module with an adapter counts as one module: on LoRA's first step each lora_A has rightly a
    zero gradient, since B is zero. Any other module counts with the trained tensors of its own.
    """
    covered: set[str] = set()
    # A tied tensor counts once, under the name that named_parameters gives it.
    distinct = dict(model.named_parameters())
    for name, module in model.named_modules():
        if hasattr(module, "adapter_layer_names"):
            tensors = [f"{name}.{n}" for n, p in module.named_parameters() if p.requires_grad]
            covered.update(tensors)
            if tensors:
                yield name, tensors
    for name, module in model.named_modules():
        own = [(f"{name}.{n}" if name else n, p) for n, p in module.named_parameters(recurse=False)]
        tensors = [n for n, p in own if n in distinct and p.requires_grad and n not in covered]
        if tensors:
            yield name, tensors
