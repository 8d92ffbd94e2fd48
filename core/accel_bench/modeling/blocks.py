"""Find parts of a model: its decoder blocks, which are the layers that it repeats, and adapters."""

from __future__ import annotations

from typing import Any

from torch import nn


def decoder_blocks(model: Any) -> tuple[str, list[nn.Module]]:
    """Return the path of the list of a model's decoder blocks, and the blocks.

    They are the items of the longest `ModuleList` that is within no other, as the experts of a
    block are; of a model that reads images too, that of its decoder of text. Without any list the
    path is empty and there are no blocks.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    inside = {id(module) for module in decoder.modules()}
    lists: dict[str, list[nn.Module]] = {}
    for name, module in model.named_modules():
        listed = isinstance(module, nn.ModuleList) and len(module) and id(module) in inside
        if listed and not any(name.startswith(f"{outer}.") for outer in lists):
            lists[name] = list(module)
    path = max(lists, key=lambda name: len(lists[name]), default="")
    return path, lists.get(path, [])


def adapter_modules(model: nn.Module) -> set[int]:
    """Return the ids of all modules that PEFT's adapters have put into a model."""
    parts = (
        getattr(module, name, None)
        for module in model.modules()
        for name in getattr(module, "adapter_layer_names", ())
    )
    # An adapter may consist of tensors alone.
    return {id(part) for one in parts if isinstance(one, nn.Module) for part in one.modules()}
