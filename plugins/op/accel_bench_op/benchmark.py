"""The base class of micro-benchmarks: what is computed, on what, at which sizes."""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.errors import PluginError, did_you_mean
from accel_bench_op.declaration import declare, parameters_of

ORIGIN = "_accel_bench_benchmark"
"""Attribute of a module or a function that `fn()` returned: its benchmark. Wrappers pass it on."""

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

    scales: tuple[float, ...] = (0.125, 4.0)
    """Factors of the inputs at which outputs and gradients are compared too; empty where only the
    values of the batch have a meaning."""

    requires_grad: bool = True
    """True if there is a backward pass."""

    keeps_inputs: bool = True
    """True if a callable that writes over the tensors of the batch is wrong. False where a model
    does not read them again, such as the logits of a loss."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        declare(cls)
        if "fn" in vars(cls):
            setattr(cls, "fn", _with_origin(cls.fn))  # noqa: B010 - mypy takes a method for fixed
        if "make_batch" in vars(cls):
            setattr(cls, "make_batch", _with_owner(cls.make_batch))  # noqa: B010 - as above

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

    def reference_with_choices(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the reference that makes the choices which `fn` makes in its own dtype.

        Such as the experts to which a router sends a token: where two are nearly alike, rounding
        decides. None where nothing is chosen.
        """
        return None

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
        flops = self.flops()
        return None if flops is None else 2 * flops

    def backward_bytes_moved(self) -> int | None:
        """Return the least bytes that one backward call reads and writes; None for unknown."""
        return None

    @property
    def returned_fn(self) -> Callable[..., Any] | None:
        """What `fn()` returned last, which holds the weights; None before the first call."""
        return self.__dict__.get("_returned_fn")


def first_of(out: Any) -> Any:
    """Return an output, or the first element of one that is a sequence."""
    is_sequence = isinstance(out, Sequence) and not isinstance(out, str | bytes)
    return out[0] if is_sequence and len(out) else out


class _Origin:
    """Keeps a benchmark alive for as long as what its `fn()` returned; neither copied nor saved."""

    def __init__(self, benchmark: Benchmark | None = None) -> None:
        self.benchmark = benchmark

    def __deepcopy__(self, _: Any) -> _Origin:
        return self

    def __reduce__(self) -> Any:
        return _Origin, ()


def benchmark_of(fn: Any, batch: Any = ()) -> Benchmark | None:
    """Return the benchmark whose `fn()` returned a callable, also one that wraps it.

    A callable that does not say so is that of the benchmark which made the batch, if its `fn()`
    has been called.
    """
    origin = getattr(fn, ORIGIN, None)
    if isinstance(origin, _Origin) and origin.benchmark is not None:
        return origin.benchmark
    for tensor in _tensors(batch):
        owner = reference() if (reference := _owners().get(tensor)) else None
        if isinstance(owner, Benchmark) and owner.returned_fn is not None:
            return owner
    return None


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
        returned = _own(fn(self))
        self.__dict__["_returned_fn"] = returned
        if _is_module(returned) or isinstance(returned, types.FunctionType):
            setattr(returned, ORIGIN, _Origin(self))
        return returned

    return method


def _own(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same code, which others do not hold; anything else as it is."""
    if not isinstance(fn, types.FunctionType):
        return fn
    parts = fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    found = types.FunctionType(*parts)
    functools.update_wrapper(found, fn)
    del found.__dict__["__wrapped__"]
    found.__dict__.update(fn.__dict__)
    found.__kwdefaults__ = fn.__kwdefaults__
    return found


def _with_owner(make_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a method `make_batch` that remembers whose tensors it made."""

    @functools.wraps(make_batch)
    def method(self: Benchmark) -> Any:
        batch = make_batch(self)
        if "torch" in sys.modules:
            for tensor in _tensors(batch):
                _owners()[tensor] = weakref.ref(self)
        return batch

    return method


@functools.cache
def _owners() -> Any:
    """Return the benchmarks of the tensors that are in batches, by identity."""
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()


def _tensors(batch: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(batch) if isinstance(one, torch.Tensor)]


def _is_module(fn: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(fn, torch.nn.Module)
