"""Names of an optimizer's weights, and sketches of their changes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

BUCKETS, ROW = 31, 31 * 131
"""Number of sums in a sketch, and number of elements that share a random sign."""


def live(*kinds: type) -> list[list[Any]]:
    """Return, for each class in `kinds`, the list of all its existing instances."""
    import gc

    objects = [item for item in gc.get_objects() if issubclass(type(item), kinds)]
    return [[item for item in objects if issubclass(type(item), kind)] for kind in kinds]


def names_in(modules: list[Any], optimizers: list[Any]) -> dict[int, str]:
    """Return the names of the optimizers' weights by the ids (`id`) of the weights.

    A name is the weight's path in the module that contains the most of all these weights, or in the
    smallest of several such modules. Names are thus the same for one optimizer of all weights and
    for one optimizer per weight.
    """
    groups = [group for optim in optimizers for group in getattr(optim, "param_groups", ())]
    wanted = {id(weight) for group in groups for weight in group["params"]}
    tables = []
    for module in modules:
        by_id = {id(p): n for n, p in module.named_parameters() if id(p) in wanted}
        tables.append((-len(by_id), sum(1 for _ in module.modules()), by_id))
    names: dict[int, str] = {}
    for _, _, by_id in sorted(tables, key=lambda table: table[:2]):
        for weight, name in by_id.items():
            names.setdefault(weight, name)
    return names


def weights_of(optimizer: Any) -> list[Any]:
    """Return the weights of an optimizer."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def versions_of(weights: list[Any]) -> int:
    """Return the sum of the weights' versions, which each change in place makes larger."""
    return sum(map(attrgetter("_version"), weights))


def last_element(weight: Any) -> Any:
    """Return a view of a weight's last element."""
    return weight.detach()[(slice(-1, None),) * weight.dim()]


def scales_losses(module: Any) -> bool:
    """Return whether a module is an engine of DeepSpeed that scales the loss itself."""
    is_engine = type(module).__module__.startswith("deepspeed.")
    return is_engine and hasattr(module, "fp16_enabled") and bool(module.fp16_enabled())


def sketch(name: str, tensor: Any, torch: Any) -> Any:
    """Return sums of a tensor's elements with random signs: shape (BUCKETS,), float64, on the host.

    The sign of an element depends only on the tensor's name and the element's index, so that the
    sketches of two processes can be compared.
    """
    import zlib

    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        rows = -(-flat.numel() // ROW)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        signs = torch.randint(0, 2, (ROW + rows,), generator=generator, dtype=torch.int8)
        signs = (signs.double() * 2 - 1).to(flat.device)
        sums = torch.zeros(ROW, dtype=torch.float64, device=flat.device)
        for first in range(0, rows, 256):
            block = flat[first * ROW : (first + 256) * ROW].double()
            whole = block.numel() // ROW
            of_rows = signs[ROW + first : ROW + first + whole + 1]
            sums += of_rows[:whole] @ block[: whole * ROW].view(-1, ROW)
            rest = block[whole * ROW :]
            if rest.numel():
                sums[: rest.numel()] += of_rows[whole] * rest
        return (sums * signs[:ROW]).view(-1, BUCKETS).sum(0).cpu()
