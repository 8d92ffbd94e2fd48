"""Timing of collectives in a few steps, without the time that a rank waits for slower ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accel_bench.engine import Batch
from accel_bench.machine.clock import monotonic
from accel_bench.result import Collective, Communication
from accel_bench.worker.after_window import StepStage

NAMESPACES = frozenset({"c10d", "_c10d_functional"})
"""Namespaces of torch's collectives, eager (`torch.distributed`) and functional."""

NOT_OBSERVED = frozenset(
    {
        *("wait_tensor", "barrier", "_wrap_tensor_autograd"),
        *("send", "recv_", "recv_any_source_"),
    }
)
"""Collective-like operations that move no data, or that only some ranks of a group call."""

NAMES = (
    ("reduce_scatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
)
"""Pairs of a part of an operation's name, and the usual name of such collectives."""


@dataclass
class _Total:
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waiting_seconds: float = 0.0


class CommunicationProbe(StepStage):
    """Extra steps after the window, taken by every rank, in which each collective is timed.

    A barrier before each collective separates the wait for slower ranks from the collective itself.
    Each collective is waited for, so none overlaps with computation here.
    """

    phase = "communication"

    def __init__(self, synchronize: Callable[[], None], steps: int) -> None:
        self._synchronize = synchronize
        self._left = steps
        self._steps: list[tuple[float, dict[str, _Total]]] = []
        self._totals: dict[str, _Total] = {}
        self._mode: EachOperation | None = None
        self._began = 0.0

    def start(self) -> bool:
        """Start to observe collectives; return True, since a step is always needed."""
        self._mode = EachOperation(self._observe)
        self._mode.__enter__()
        self._began = monotonic()
        return True

    def end_step(self, batches: Sequence[Batch] = (), loss: Any = None) -> bool:
        """End a step; return whether another is needed, and else stop to observe collectives."""
        self._synchronize()
        now = monotonic()
        self._steps.append((now - self._began, self._totals))
        self._began, self._totals = now, {}
        self._left -= 1
        if not self._left:
            self.stop()
        return self._left > 0

    def stop(self) -> None:
        """Stop observing collectives; further calls do nothing."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def result(self) -> Communication | None:
        """Return calls, bytes and seconds of the collectives of a step, by kind.

        The first of several steps is left out, since process groups connect in it. Returns None
        before the first step has ended.
        """
        if not self._steps:
            return None
        steps = self._steps[1:] or self._steps
        names = sorted({name for _, totals in steps for name in totals})
        return Communication(
            steps=len(self._steps),
            step_seconds=median(seconds for seconds, _ in steps),
            collectives={
                name: _of_step([totals.get(name) for _, totals in steps]) for name in names
            },
        )

    def _observe(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call an operation, and return its result; a collective is timed, after a barrier."""
        if not is_collective(function):
            return function(*args, **kwargs)
        arguments = (*args, *kwargs.values())
        self._synchronize()
        began = monotonic()
        meet(group_of(arguments))
        met = monotonic()
        result = function(*args, **kwargs)
        wait_for(result)
        self._synchronize()
        total = self._totals.setdefault(name_of(function), _Total())
        total.calls += 1
        total.bytes += largest_buffer((*arguments, result))
        total.waiting_seconds += met - began
        total.seconds += monotonic() - met
        return result


def _of_step(totals: Sequence[_Total | None]) -> Collective:
    """Return the average of a collective's `totals` over steps; None is a step without it.

    Calls and bytes are means; seconds are medians, which a single delayed step does not change.
    """
    sums = [total or _Total() for total in totals]
    return Collective(
        calls=fmean(total.calls for total in sums),
        bytes=fmean(total.bytes for total in sums),
        seconds=median(total.seconds for total in sums),
        waiting_seconds=median(total.waiting_seconds for total in sums),
    )


class EachOperation(TorchDispatchMode):
    """Mode that calls `observe` in place of every torch operation, also of operations in C++.

    `observe` gets the operation, types and arguments; its value replaces the operation's result.
    """

    def __init__(self, observe: Callable[[Any, Any, Any, Any], Any]) -> None:
        super().__init__()
        self._observe = observe

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled code stays compiled, and operations inside it are not observed."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._observe(func, types, args, kwargs or {})


def is_collective(function: Any) -> bool:
    """Return whether an operation is a collective that every rank of a process group calls."""
    return function.namespace in NAMESPACES and _bare_name(function) not in NOT_OBSERVED


def name_of(function: Any) -> str:
    """Return the kind of a collective under its usual name, such as `all_reduce`."""
    name = _bare_name(function)
    known = (usual for part, usual in NAMES if part in name)
    return next(known, name.strip("_"))


def _bare_name(function: Any) -> str:
    return str(function.name().partition("::")[2].partition(".")[0])


def group_of(arguments: tuple[Any, ...]) -> Any:
    """Return the process group that is, or is named, among the arguments of a collective."""
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import _resolve_process_group

    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return ProcessGroup.unbox(argument)
    names = [name for name in arguments if isinstance(name, str)]
    return _resolve_process_group(names[-1])


def meet(group: Any) -> None:
    """Wait until every rank of a process group has called this function."""
    group.barrier().wait()


def wait_for(returned: Any) -> None:
    """Wait for the end of a collective, given the value that it returned."""
    for leaf in tree_leaves(returned):
        if isinstance(leaf, torch.ScriptObject) and str(leaf._type()).endswith("Work"):
            torch.distributed.Work.unbox(leaf).wait()
        elif isinstance(leaf, torch.Tensor) and not isinstance(returned, torch.ScriptObject):
            torch.ops._c10d_functional.wait_tensor(leaf)


def largest_buffer(values: tuple[Any, ...]) -> int:
    """Return the bytes of the largest of `values`, a collective's arguments and result."""
    sizes = [
        sum(
            leaf.numel() * leaf.element_size() for leaf in tree_leaves(arg) if torch.is_tensor(leaf)
        )
        for arg in values
    ]
    return max(sizes, default=0)
