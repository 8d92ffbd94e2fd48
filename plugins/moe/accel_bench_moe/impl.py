"""Switch of the implementation by which a model's experts multiply, with evidence of its use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from accel_bench.errors import PluginError
from accel_bench.modeling.tensors import dtype_name

ROW_BYTES = 16
"""Number of bytes that rows of matrices must be a multiple of for torch's grouped product."""


class ExpertsSwitch:
    """Switch of the implementation of a model's experts; `undo` restores the previous one."""

    def __init__(self, model: nn.Module, implementation: str) -> None:
        """Switch all experts of `model` to `implementation`, in place.

        Raises PluginError if the model has no switchable experts, or sizes that torch's grouped
        product does not support.
        """
        self.modules = switchable_experts(model)
        if not self.modules:
            raise PluginError(
                f"moe: {type(model).__name__} holds no experts that transformers has several "
                "implementations of; take moe out of the stack"
            )
        if implementation == "grouped_mm":
            check_sizes(self.modules)
        self._model = pretrained_model(model)
        self._before = self._model.get_experts_implementation()
        self._default = implementations(self.modules)
        self._model.set_experts_implementation(implementation)
        if (active := implementations(self.modules)) != [implementation]:
            self.undo()
            raise PluginError(
                f"moe: experts of {type(self._model).__name__} stay {', '.join(active)} where "
                f"{implementation} was asked for; this version of transformers cannot switch them"
            )

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: present and original implementation, and module counts."""
        default, active = ", ".join(self._default), ", ".join(implementations(self.modules))
        return {
            "summary": f"{len(self.modules)} modules of experts by {active}, by default {default}",
            "experts": active,
            "default": default,
            "switched_modules": len(self.modules) if active != default else 0,
            "expert_modules": len(self.modules),
            "module_class": type(self.modules[0]).__name__,
            "experts_per_module": self.modules[0].num_experts,
            "replaced_forwards": sum(is_replaced(module) for module in self.modules),
        }

    def undo(self) -> None:
        """Restore the implementation that the model's experts had before the switch."""
        self._model.set_experts_implementation(self._before)


def switchable_experts(model: nn.Module) -> list[Any]:
    """Return the modules of experts whose implementation transformers can switch.

    They are recognized by attributes in which transformers notes the layout of their weights.
    """
    marks = ("has_gate", "is_transposed", "num_experts")
    return [module for module in model.modules() if all(hasattr(module, mark) for mark in marks)]


def implementations(modules: Sequence[Any]) -> list[str]:
    """Return the distinct implementations of modules of experts: `eager`, `grouped_mm`, ..."""
    return sorted({str(module.config._experts_implementation) for module in modules})


def is_replaced(module: nn.Module) -> bool:
    """Return whether a module's forward was replaced, so that transformers cannot switch it."""
    return "forward" in vars(module) or not hasattr(type(module).forward, "__wrapped__")


def pretrained_model(model: nn.Module) -> Any:
    """Return the outermost transformers model, inside PEFT's model if there is an adapter."""
    return next(module for module in model.modules() if isinstance(module, PreTrainedModel))


def check_sizes(modules: Sequence[nn.Module]) -> None:
    """Raise PluginError if an expert's matrix has rows that torch's grouped product rejects."""
    for module in modules:
        for name, weight in module.named_parameters(recurse=False):
            odd = [size for size in weight.shape[1:] if size * weight.element_size() % ROW_BYTES]
            if weight.dim() == 3 and odd:
                raise PluginError(
                    f"moe: torch's grouped_mm multiplies rows of a multiple of {ROW_BYTES} bytes, "
                    f"and {name} has {odd[0]} x {dtype_name(weight.dtype)}; change that size by "
                    "model.overrides, or use experts: eager or batched_mm"
                )
