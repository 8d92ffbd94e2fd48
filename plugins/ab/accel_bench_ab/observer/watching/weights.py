"""Names of an optimizer's weights, and sketches of their changes."""

from __future__ import annotations

from ctypes import string_at
from operator import attrgetter
from typing import Any

BUCKETS, ROW = 31, 31 * 131
"""Number of sums in a sketch, and number of elements that share a random sign."""

version_of = attrgetter("_version")


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


class OptimizerWeights:
    """Weights of an optimizer by name, and their state after its last step.

    `number` is the number of all of the optimizer's weights.
    """

    def __init__(self, trained: dict[str, Any], number: int, torch: Any) -> None:
        self.trained, self.number, self._torch = trained, number, torch
        self._dtypes = [weight.dtype for weight in trained.values()]
        self._last = last = [*trained.values()][-1]
        plain = type(last) in (torch.Tensor, torch.nn.Parameter) and last.layout is torch.strided
        self._is_plain = plain and bool(last.numel())
        self._versions = 0
        self._element: Any = None
        self._record_element()

    def record(self) -> None:
        """Record the versions of the weights, and one element.

        `weight.data.copy_()`, by which averaged weights are loaded, changes no version.
        """
        self._versions = _versions_of(self.trained)
        self._record_element()

    def _record_element(self) -> None:
        """Copy the last element, as bytes where memory can be read: torch's kernels are slow."""
        last = self._last
        place = last.data_ptr() if self._is_plain and last.is_cpu and last.is_contiguous() else 0
        if place:
            size = last.itemsize
            self._element = string_at(place + last.nbytes - size, size)
        elif isinstance(self._element, self._torch.Tensor):
            self._element.copy_(_last_element(last))
        else:
            self._element = _last_element(last).clone()

    def changed(self) -> bool:
        """Return whether a weight was changed after `record`."""
        dtypes = [weight.dtype for weight in self.trained.values()]
        if self._versions != _versions_of(self.trained) or self._dtypes != dtypes:
            return True
        element, recorded = _last_element(self._last).cpu(), self._element
        if isinstance(recorded, bytes):
            return recorded != bytes(element.reshape(-1).view(self._torch.uint8).tolist())
        recorded = recorded.cpu()
        return not bool(((element == recorded) | element.isnan()).all())


def _versions_of(weights: dict[str, Any]) -> int:
    """Return the sum of the weights' versions, which each change in place makes larger."""
    return sum(map(version_of, weights.values()))


def _last_element(weight: Any) -> Any:
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
