"""Search of a model for its repeated encoder or decoder blocks, and for its adapters."""

from __future__ import annotations

from typing import Any

from torch import nn

CHECKPOINTS = "gradient_checkpointing"
"""Attribute of a layer that transformers can checkpoint."""


def block_lists(model: Any) -> dict[str, list[nn.Module]]:
    """Return the lists of repeated blocks in a model, such as its encoder's, by dotted path.

    They are the outermost `ModuleList`s whose layers have one class and can be checkpointed by
    transformers. For a model without such lists, the only list is that of `decoder_blocks`.
    """
    lists: dict[str, list[nn.Module]] = {}
    for name, module in model.named_modules():
        outer = not any(name.startswith(f"{path}.") for path in lists)
        if outer and isinstance(module, nn.ModuleList) and _are_blocks([*module]):
            lists[name] = [*module]
    if lists:
        return lists
    path, blocks = decoder_blocks(model)
    return {path: blocks} if blocks else {}


def repeated_blocks(model: Any) -> list[nn.Module]:
    """Return the blocks in all `block_lists` of a model, in one list."""
    return [block for blocks in block_lists(model).values() for block in blocks]


def _are_blocks(modules: list[nn.Module]) -> bool:
    return len({type(module) for module in modules}) == 1 and hasattr(modules[0], CHECKPOINTS)


def decoder_blocks(model: Any) -> tuple[str, list[nn.Module]]:
    """Return the dotted path of the `ModuleList` with a model's decoder blocks, and the blocks.

    It is the longest list that is inside no other. In a vision-language model, only the text
    decoder is searched. For a model without lists, the path and the result's list are empty.
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
    """Return the `id()` of each module that PEFT's adapters have added to a model."""
    parts = (
        getattr(module, name, None)
        for module in model.modules()
        for name in getattr(module, "adapter_layer_names", ())
    )
    # An adapter may consist of tensors alone.
    return {id(part) for layer in parts if isinstance(layer, nn.Module) for part in layer.modules()}
