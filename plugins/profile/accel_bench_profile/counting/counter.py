"""Counter of a step's operations as torch dispatches them, and of tensors saved by autograd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter

from accel_bench.modeling.tensors import dtype_name, plain_tensors
from accel_bench.worker.communication import EachOperation, is_collective, largest_buffer, name_of
from accel_bench.worker.flops.operations import flops_of, moves_nothing
from accel_bench_profile.counting.operations import cast_of, kind_of, moved_bytes, synchronizes
from accel_bench_profile.counting.sites import Sites
from accel_bench_profile.ledger.schema import EntryKey, Figure, LedgerEntry, Site, entries_of

TO_HOST = frozenset(
    {torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__}
)
"""Methods that synchronize with a device; on host tensors they dispatch no operation."""

AS_TEXT = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__})
"""Methods that format a tensor as text, whose operations torch hides from dispatch modes."""

NOT_COUNTED = frozenset({"detach", "_record_function_enter_new", "_record_function_exit"})
"""Operations that are no work: profiler ranges, and variables of saved tensors."""


class OperationCounter:
    """Counter of operations between `start` and `stop`; compiled code counts as its kernels.

    `sites` finds an operation's source line. The storages of `kept` tensors, such as weights, never
    count as saved. `host_state` are tensors that are on the host on every device, such as step
    numbers.
    """

    def __init__(self, sites: Sites, kept: Iterable[Any], host_state: Iterable[Any]) -> None:
        self.sites = sites
        self._totals: dict[EntryKey, Counter[Figure]] = {}
        self._saved = _storages(kept)
        self._host_state = _storages(host_state)
        self._paused = False
        self._modes = ExitStack()

    def start(self, host_calls: bool) -> None:
        """Start counting operations.

        With `host_calls` it counts calls such as `Tensor.cpu` too, by a mode that a compiler would
        trace.
        """
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._modes.enter_context(hooks)
        if host_calls:
            self._modes.enter_context(_HostCalls(self))
        self._modes.enter_context(EachOperation(self.run))

    def stop(self) -> None:
        """Stop counting, if it was started."""
        self._modes.close()

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return the ledger entries of counted operations, in the order of first occurrence."""
        return entries_of(self._totals)

    def add(self, key: EntryKey, figures: dict[Figure, int]) -> None:
        """Add figures to the ledger entry with the key `key`: site, operation, kind and dtype."""
        self._totals.setdefault(key, Counter()).update(figures)

    def run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call and count the operation `func`; return NotImplemented if a tensor wraps others."""
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if self._paused or func.overloadpacket.__name__ in NOT_COUNTED:
            return func(*args, **kwargs)
        site = self.sites.here()
        out = func(*args, **kwargs)
        self._count(site, func, (args, kwargs), out)
        return out

    def host_call(self, name: str, tensor: torch.Tensor) -> None:
        """Count a call that synchronizes with a device, or would synchronize with one."""
        site = self.sites.here()
        if self._on_host(site, [tensor]):
            return
        key: EntryKey = (site, name, "synchronization", dtype_name(tensor.dtype))
        self.add(key, {"operations": 1, "synchronizations": 1})

    def _on_host(self, site: Site, used: list[torch.Tensor]) -> bool:
        """Return whether an operation's tensors are in host memory, whatever device the step uses.

        Examples are the optimizer's step numbers, and batches until the end of the data phase.
        """
        if not used or used[0].device.type != "cpu":
            return False
        return site.phase == "data" or _storage(used[0]) in self._host_state

    def _count(self, site: Site, func: Any, given: tuple[Any, Any], out: Any) -> None:
        args, kwargs = given
        used = [tensor for tensor in tree_iter(given) if isinstance(tensor, torch.Tensor)]
        made = [tensor for tensor in tree_iter(out) if isinstance(tensor, torch.Tensor)]
        flops = flops_of(func.overloadpacket, args, kwargs, out)
        kind = kind_of(func, used, made, flops)
        if synchronizes(func, args, kwargs, out):
            kind = "other" if self._on_host(site, used) else "synchronization"
        name = func.overloadpacket.__name__
        operation = name_of(func) if kind == "communication" else f"{func.namespace}.{name}"
        dtype = cast_of(name, used, made) or _dtype(made or used)
        figures: dict[Figure, int] = {"operations": 1, "flops": flops, **_new_storages(used, made)}
        if is_collective(func):
            figures |= {"collectives": 1, "collective_bytes": largest_buffer((args, out))}
        elif not moves_nothing(func, used, made):
            moved = moved_bytes(func, args, kwargs, out)
            figures |= {"kernels": 1, "moved_bytes": moved}
        if kind == "synchronization":
            figures["synchronizations"] = 1
        self.add((site, operation, kind, dtype), figures)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count each storage of a tensor saved by autograd once; return the tensor detached."""
        self._paused = True
        try:
            for plain in plain_tensors(tensor):
                if (storage := _storage(plain)) is not None and storage not in self._saved:
                    self._saved.add(storage)
                    size = plain.untyped_storage().nbytes()
                    site = self.sites.here()
                    key: EntryKey = (site, "saved", "saved tensor", dtype_name(plain.dtype))
                    self.add(key, {"saved_bytes": size})
            return tensor.detach()
        finally:
            self._paused = False


class _HostCalls(TorchFunctionMode):
    """Counter of synchronizing calls that dispatch no visible operation."""

    def __init__(self, counter: OperationCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to_host = func in TO_HOST or (func is torch.Tensor.to and _names_host(args, kwargs))
        hidden = func in AS_TEXT and (func is torch.Tensor.__repr__ or args[0].dim())
        if hidden or (to_host and args[0].device.type == "cpu"):
            self._counter.host_call(f"Tensor.{func.__name__}", args[0])
        return func(*args, **kwargs)


def _names_host(args: Any, kwargs: Any) -> bool:
    """Return whether `Tensor.to` is called with the text "cpu"; a `torch.device` does not count."""
    return "cpu" in [
        value for value in (*args[1:2], kwargs.get("device")) if isinstance(value, str)
    ]


def _storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    """Return a weak reference that identifies a storage even after its release."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return None


def _storages(tensors: Iterable[Any]) -> set[StorageWeakRef | None]:
    return {_storage(plain) for tensor in tensors for plain in plain_tensors(tensor)}


def _new_storages(used: list[torch.Tensor], made: list[torch.Tensor]) -> dict[Figure, int]:
    """Return number and bytes of those storages of the tensors `made` that none in `used` has."""
    before = {_storage(tensor) for tensor in used}
    new = {storage: tensor for tensor in made if (storage := _storage(tensor)) not in before}
    size = sum(
        tensor.untyped_storage().nbytes() for storage, tensor in new.items() if storage is not None
    )
    return {"allocations": len(new), "allocated_bytes": size}


def _dtype(tensors: list[torch.Tensor]) -> str:
    return dtype_name(tensors[0].dtype) if tensors else ""
