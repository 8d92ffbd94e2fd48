"""Reversible patching of a model by Liger's own patching function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch
from liger_kernel.transformers.monkey_patch import (
    MODEL_TYPE_TO_APPLY_LIGER_FN,
    _apply_liger_kernel_to_instance,
)
from torch import nn

from accel_bench.errors import PluginError
from accel_bench_fused_kernels.impl.replacements import ABSENT, Replacements


class LigerPatch:
    """Liger's changes to a model, to its modeling module and to torch, which can be undone."""

    def __init__(self, model: nn.Module) -> None:
        """Prepare a root model, with or without adapters, for `apply`. Raises PluginError if Liger
        has no patch for its architecture."""
        known = (m for m in model.modules() if _model_type(m) in MODEL_TYPE_TO_APPLY_LIGER_FN)
        causal = next((m for m in known if type(m).__name__.endswith("ForCausalLM")), None)
        if causal is None:
            raise PluginError(f"liger: Liger has no patch for {type(model).__name__}")
        self._causal: Any = causal
        self._changed: list[tuple[Any, str, Any]] = []
        self.replacements = Replacements()
        """Attributes replaced by Liger."""

    def apply(self, wanted: dict[str, bool]) -> None:
        """Patch the model with Liger's defaults, overridden by `wanted`.

        `wanted` maps arguments of Liger's function, such as `rope`, to True or False. Raises
        PluginError if Liger cannot patch the model, or if an override would have no effect.
        """
        if "swiglu" in wanted:
            wanted = {**wanted, "geglu": wanted["swiglu"]}
        # Each of them is on by default for some architecture, and Liger asserts that one is off.
        losses = ("cross_entropy", "fused_linear_cross_entropy")
        for part, other in (losses, losses[::-1]):
            if wanted.get(part):
                wanted = {other: False, **wanted}
        before = {(id(owner), owner): dict(vars(owner)) for owner in self._owners()}
        try:
            _apply_liger_kernel_to_instance(model=self._causal, **wanted)
        except NotImplementedError as error:
            raise PluginError(f"liger: {error}") from error
        finally:
            self._changed = [
                (owner, name, attributes.get(name, ABSENT))
                for (_, owner), attributes in before.items()
                for name in {*attributes, *vars(owner)}
                if attributes.get(name, ABSENT) is not vars(owner).get(name, ABSENT)
            ]
            for change in self._changed:
                self.replacements.note(*change)
        self._refuse_unread_attributes()

    def _refuse_unread_attributes(self) -> None:
        """Raise PluginError if Liger set a new attribute, which no code of the model reads."""
        for owner, name, before in self._changed:
            if before is ABSENT and not isinstance(owner, nn.Module):
                raise PluginError(
                    f"liger: Liger sets {owner.__name__}.{name}, which this transformers does not "
                    "read, so that part of it would do nothing; switch that part off"
                )

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: replaced modules by class, replaced functions, and Liger's
        version."""
        modules = [
            owner
            for owner, name, _ in self._changed
            if isinstance(owner, nn.Module) and name == "forward"
        ]
        others = [
            f"{owner.__name__}.{name}"
            for owner, name, _ in self._changed
            if not isinstance(owner, nn.Module)
        ]
        return {
            "replaced_modules": len(modules),
            "modules": dict(Counter(type(module).__name__ for module in modules).most_common()),
            "attributes": sorted(others),
            "liger_kernel": metadata.version("liger-kernel"),
        }

    def undo(self) -> None:
        """Restore all replaced attributes."""
        self.replacements.undo()
        self._changed.clear()

    def _owners(self) -> Iterator[Any]:
        """Yield all objects that Liger may patch: the model's modules, its modeling module with the
        classes, and torch's functions."""
        modeling = sys.modules[type(self._causal).__module__]
        yield from self._causal.modules()
        yield modeling
        yield from (value for value in vars(modeling).values() if isinstance(value, type))
        yield torch.nn.functional


def _model_type(module: nn.Module) -> str | None:
    return getattr(getattr(module, "config", None), "model_type", None)
