"""Installation of fused kernels in a model, and their removal.

A part is a kind of kernel that an option enables, such as `rms_norm` or `lora`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from importlib import metadata
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from accel_bench.errors import PluginError
from accel_bench_fused_kernels.impl import causal_loss
from accel_bench_fused_kernels.impl.replacements import Replacements
from accel_bench_fused_kernels.rules import RULES, Rules

if TYPE_CHECKING:
    from accel_bench_fused_kernels.impl.lora import Fusion
    from accel_bench_fused_kernels.plugin import FusedKernelsOptions, Library

ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
}
"""Kernel names of activations in gated MLPs, by the activation's class."""


class LeftOut(Exception):
    """Exception with the reason why a kind of fused kernel cannot be used in a model."""


class FusedModel:
    """Model with fused kernels, and a record of the installed and skipped kinds of kernels."""

    def __init__(
        self,
        model: nn.Module,
        options: FusedKernelsOptions,
        libraries: Mapping[str, tuple[Library | None, str]],
    ) -> None:
        """Prepare a root model, with or without adapters, whose code only `install` changes.

        `libraries` maps each enabled kind of kernel to its library, or to None and the reason for
        None. Raises PluginError if the table `RULES` lacks the model's architecture.
        """
        self._model = model
        self._causal: Any = causal_model(model)
        self._rules: Rules = RULES[type(self._causal).__name__]
        self._options = options
        self._libraries = libraries
        self.replacements = Replacements()
        """Replaced attributes of modules, except of adapted layers."""

        self._fusion: Fusion | None = None
        self._parts: dict[str, dict[str, Any]] = {}
        self._left_out: dict[str, str] = {}

    def install(self) -> None:
        """Install the kinds of fused kernels, called parts, that the options enable.

        Raises PluginError if a part enabled by name has nothing to replace, or if no part has.
        """
        for part in self._options.on():
            try:
                self._parts[part] = getattr(self, f"_install_{part}")()
            except LeftOut as reason:
                self._left_out[part] = str(reason)
        missed = [part for part in self._left_out if part in self._options.named()]
        if missed or not self._parts:
            reasons = "; ".join(f"{part}: {self._left_out[part]}" for part in missed)
            reasons = reasons or "; ".join(f"{p}: {why}" for p, why in self._left_out.items())
            raise PluginError(f"fused-kernels: nothing was replaced by {reasons}")

    def undo(self) -> None:
        """Restore the model's original code, in reverse order of the replacements."""
        self.replacements.undo()
        if self._fusion is not None:
            self._fusion.undo()
            self._fusion = None

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of each kind of kernel: its replacements, or why it is skipped."""
        if self._fusion is not None and "lora" in self._parts:
            self._parts["lora"] = self._fusion.evidence()
        liger = any(entry.get("library") == "liger" for entry in self._parts.values())
        return {
            "summary": f"{', '.join(self._parts)} fused",
            "architecture": type(self._causal).__name__,
            "parts": self._parts,
            "left_out": self._left_out,
            "liger_kernel": metadata.version("liger-kernel") if liger else None,
        }

    def _install_lora(self) -> dict[str, Any]:
        if not any(hasattr(module, "lora_A") for module in self._model.modules()):
            raise LeftOut("the model has no LoRA adapters")
        from accel_bench_fused_kernels.impl.lora import fuse_lora

        self._fusion = fuse_lora(self._model)
        evidence = self._fusion.evidence()
        if not evidence["adapted_layers"]:
            raise LeftOut(f"no adapter is LoRA's plain form: {evidence['left_alone']}")
        return evidence

    def _install_rms_norm(self) -> dict[str, Any]:
        library, kernels = self._kernels("rms_norm")
        rule = self._rules.norms
        norms = _untouched(self._instances(rule.classes)) if rule else {}
        if rule is None or not norms:
            raise LeftOut(f"{type(self._causal).__name__} has none")
        for name, norm in norms.items():
            shared = name.rpartition(".")[2] in rule.shared_gradient
            forward = kernels.norm_forward(rule.offset, rule.in_float32, shared)
            self._bind(norm, "forward", forward)
        return _counted(library, kernels.NAMES["rms_norm"], norms.values())

    def _install_rope(self) -> dict[str, Any]:
        library, kernels = self._kernels("rope")
        if self._rules.rotary is None:
            raise LeftOut(f"{type(self._causal).__name__} has none")
        modeling = sys.modules[type(self._causal).__module__]
        original = getattr(modeling, self._rules.rotary)
        self.replacements.put(modeling, self._rules.rotary, kernels.rotary(original))
        function = f"{modeling.__name__.rpartition('.')[2]}.{self._rules.rotary}"
        return {
            "library": library,
            "kernel": kernels.NAMES["rope"],
            "replaced": 1,
            "functions": [function],
        }

    def _install_gated_mlp(self) -> dict[str, Any]:
        library, kernels = self._kernels("gated_mlp")
        all_mlps = dict(self._instances(self._rules.gated_mlps))
        covered = self._fusion.fused_mlps if self._fusion is not None else frozenset()
        mlps = _untouched(pair for pair in all_mlps.items() if pair[0] not in covered)
        experts = _untouched(self._instances(self._rules.experts))
        if not all_mlps and not experts:
            raise LeftOut(f"{type(self._causal).__name__} has none")
        names = set()
        for mlp in mlps.values():
            activation = _activation(mlp)
            self._bind(mlp, "forward", kernels.MLPS[activation])
            names.add(kernels.NAMES[activation])
        for expert in experts.values():
            if _activation(expert) != "silu":
                raise LeftOut("experts have a kernel for silu alone")
            if self._causal.config._experts_implementation == "eager":
                raise LeftOut("experts one after the other do not gate in a function of their own")
            self._bind(expert, "_apply_gate", kernels.silu_gate)
            names.add(kernels.NAMES["gate"])
        kernel = ", ".join(sorted(names)) or None
        replaced = _counted(library, kernel, [*mlps.values(), *experts.values()])
        return {**replaced, "covered_by_lora": len(covered & all_mlps.keys())}

    def _install_cross_entropy(self) -> dict[str, Any]:
        library, kernels = self._kernels("cross_entropy")
        original = self._own_loss()
        fused = causal_loss.loss_function(original, kernels.cross_entropy)
        self.replacements.put(self._causal, "_loss_function", fused)
        return {
            "library": library,
            "kernel": kernels.NAMES["cross_entropy"],
            "replaced": 1,
            "functions": [original.__name__],
        }

    def _install_linear_cross_entropy(self) -> dict[str, Any]:
        library, kernels = self._kernels("linear_cross_entropy")
        self._own_loss()
        rule, config = self._rules.loss, self._causal.config
        if library == "torch" and rule.softcap and getattr(config, rule.softcap) is not None:
            raise LeftOut("the model bounds its logits, which torch's kernel does not know")
        kernel, chunk = kernels.linear_cross_entropy, self._options.loss_chunk
        if chunk is not None and library != "liger":
            raise LeftOut("loss_chunk is Liger's: torch's kernel chooses its chunks itself")
        if chunk is not None:
            kernel = partial(kernel, chunk_mem_const=chunk)
        loss = causal_loss.LinearLoss(self._head(), config, rule, kernel)
        self._bind(self._causal, "forward", causal_loss.linear_forward(self._causal, loss))
        return {
            "library": library,
            "kernel": kernels.NAMES["linear_cross_entropy"],
            "replaced": 1,
            "functions": [f"{type(self._causal).__name__}.forward"],
            **({} if chunk is None else {"loss_chunk": chunk}),
        }

    def _kernels(self, part: str) -> tuple[str, Any]:
        """Return the library's name for a kind of kernel, and the module here that adapts it.

        `part` is the kind, such as `rms_norm`. Raises LeftOut if there is no library.
        """
        library, why = self._libraries[part]
        if library is None:
            raise LeftOut(why)
        if library == "torch":
            from accel_bench_fused_kernels.impl import torch_kernels

            return library, torch_kernels
        from accel_bench_fused_kernels.impl import liger_kernels

        return library, liger_kernels

    def _instances(self, classes: frozenset[str]) -> Iterator[tuple[str, Any]]:
        for name, module in self._model.named_modules():
            if type(module).__name__ in classes:
                yield name, module

    def _bind(self, module: Any, name: str, function: Any) -> None:
        self.replacements.put(module, name, MethodType(function, module))

    def _own_loss(self) -> Any:
        """Return the model's loss function. Raises LeftOut if transformers does not define it."""
        original = self._causal.loss_function
        if original.__name__ != "ForCausalLMLoss":
            raise LeftOut(f"the model computes its loss with {original.__name__}")
        return original

    def _head(self) -> nn.Linear:
        """Return the output projection. Raises LeftOut if it is not a plain linear layer."""
        head = self._causal.get_output_embeddings()
        saved = getattr(head, "modules_to_save", None)
        if isinstance(saved, nn.ModuleDict) and len(saved) == 1:
            head = next(iter(saved.values()))
        if type(head) is not nn.Linear:
            raise LeftOut(f"the output projection is a {type(head).__name__}, not a plain linear")
        return head


def causal_model(model: nn.Module) -> nn.Module:
    """Return the causal language model inside a model with or without adapters.

    Raises PluginError if no module's class has an entry in the table `RULES`.
    """
    for module in model.modules():
        if type(module).__name__ in RULES:
            return module
    raise PluginError(
        f"fused-kernels: no rules for {type(model).__name__}; it knows {', '.join(sorted(RULES))}"
    )


def _activation(module: Any) -> str:
    """Return the kernel name of the activation of a gated MLP or of experts. Raises LeftOut if it
    has no kernel."""
    name = type(module.act_fn).__name__
    if name not in ACTIVATIONS:
        raise LeftOut(f"the activation {name} has no kernel")
    return ACTIVATIONS[name]


def _untouched(modules: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the modules, by name, whose `forward` has not been replaced on the instance."""
    return {name: module for name, module in modules if "forward" not in vars(module)}


def _counted(library: str, kernel: str | None, found: Collection[Any]) -> dict[str, Any]:
    """Return JSON evidence of replaced modules: library, kernel, and counts in all and by class.

    `found` are the replaced modules.
    """
    classes = Counter(type(module).__name__ for module in found)
    return {
        "library": library,
        "kernel": kernel,
        "replaced": len(found),
        "modules": dict(classes.most_common()),
    }
