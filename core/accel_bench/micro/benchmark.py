"""The base class of micro-benchmarks: what is computed, on what, at which sizes."""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.errors import PluginError, did_you_mean
from accel_bench.micro.declaration import declare, parameters_of

ORIGIN = "_accel_bench_benchmark"
"""Attribute of what `fn()` returned: a weak reference to its benchmark. Wrappers pass it on."""

TOLERANCE: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
}
"""Largest relative distance from float64, by the dtype of the computation."""


@dataclass(frozen=True)
class BenchmarkArg:
    """An argument of a benchmark's `__init__`."""

    name: str

    description: str
    """What it means, and its default, in a sentence."""


class Benchmark(ABC):
    """A callable and the batch that it is timed on.

    `name`, `description` and `args` are class attributes or class properties. `__init__` takes
    `args` first, in their order; what it takes beyond them has defaults. A subclass without a name
    is a base of others.
    """

    name: str = ""
    """Short, distinct, and valid as a file's name."""

    description: str = ""
    """A short sentence."""

    args: tuple[BenchmarkArg, ...] = ()
    """The arguments that a user may set."""

    operation: str = ""
    """What an executor may have a kernel for: `rms_norm`, `swiglu_mlp`, `cross_entropy`, ..."""

    sizes: Mapping[str, Mapping[str, object]] = {}
    """Keyword arguments of `__init__` by the name of a size; `tiny` computes in milliseconds."""

    tolerance: Mapping[str, float] = TOLERANCE
    """Largest relative distance of outputs and gradients from float64, by dtype."""

    requires_grad: bool = True
    """Whether there is a backward pass."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        declare(cls)
        if "fn" in vars(cls):
            setattr(cls, "fn", _with_origin(cls.fn))  # noqa: B010 - mypy takes a method for fixed

    def __init__(self, *_: object) -> None:
        """Take nothing; `super().__init__(self)` works as `super().__init__()` does."""
        super().__init__()

    @classmethod
    def at_size(cls, size: str = "", **settings: object) -> Any:
        """Return the benchmark at one of its sizes; empty is the defaults of `__init__`.

        `settings` are arguments such as `device` and `dtype`: those that the size sets, or that
        `__init__` does not take, are left out. Raises PluginError for an unknown size.
        """
        if size and size not in cls.sizes:
            hint = did_you_mean(size, cls.sizes) or "; it has none"
            raise PluginError(f"benchmark {cls.name!r} has no size {size!r}{hint}")
        given = dict(cls.sizes[size]) if size else {}
        taken = {key: value for key, value in settings.items() if key in parameters_of(cls)}
        try:
            return cls(**{**taken, **given})
        except TypeError as error:
            raise PluginError(f"benchmark {cls.name!r}, size {size!r}: {error}") from error

    @abstractmethod
    def make_batch(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the positional and keyword arguments of a call, always of the same values."""

    @abstractmethod
    def fn(self) -> Callable[..., Any]:
        """Return what is timed: a function or a `torch.nn.Module`."""

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return what computes the same as `fn` in float64, with the same weights.

        A copy of a module in float64; a function is taken to compute in the dtype of its inputs.
        """
        import torch

        return copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn

    def postprocess_for_backward(self, out: Any) -> Any:
        """Return the tensor to start the backward pass at, or None for no backward pass.

        The output itself, or the first element of a sequence.
        """
        return first_of(out)

    def unavailable(self) -> str:
        """Return why it cannot be built here: a missing library, say. Empty where it can."""
        return ""

    def flops(self) -> int | None:
        """Return the FLOPs of one forward call; None where they say nothing."""
        return None

    def bytes_moved(self) -> int | None:
        """Return the least bytes that one forward call reads and writes; None for unknown."""
        return None

    def backward_flops(self) -> int | None:
        """Return the FLOPs of one backward call: twice the forward ones, by default."""
        return _twice(self.flops())

    def backward_bytes_moved(self) -> int | None:
        """Return the least bytes of one backward call: twice the forward ones, by default."""
        return _twice(self.bytes_moved())

    @property
    def returned_fn(self) -> Callable[..., Any] | None:
        """What `fn()` returned last, which holds the weights; None before the first call."""
        found: Callable[..., Any] | None = self.__dict__.get("_returned_fn")
        return found


def first_of(out: Any) -> Any:
    """Return an output, or the first element of one that is a sequence."""
    is_sequence = isinstance(out, Sequence) and not isinstance(out, str | bytes)
    return out[0] if is_sequence and len(out) else out


def benchmark_of(fn: Any) -> Benchmark | None:
    """Return the benchmark whose `fn()` returned a callable, also one that wraps it."""
    reference = getattr(fn, ORIGIN, None)
    return reference() if isinstance(reference, weakref.ref) else None


def as_dtype(dtype: Any) -> Any:
    """Return a `torch.dtype`, which may be given by its name."""
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise PluginError(f"torch has no dtype {dtype!r}; use one such as float32 or bfloat16")
    return found


def _with_origin(fn: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Callable[..., Any]]:
    """Return a method `fn` whose result knows its benchmark."""

    @functools.wraps(fn)
    def method(self: Benchmark) -> Callable[..., Any]:
        returned = fn(self)
        self.__dict__["_returned_fn"] = returned
        with contextlib.suppress(
            AttributeError, TypeError
        ):  # built-in functions, objects with slots
            setattr(returned, ORIGIN, weakref.ref(self))
        return returned

    return method


def _twice(value: int | None) -> int | None:
    return None if value is None else 2 * value
