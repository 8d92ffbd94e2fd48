"""Base class of micro-benchmarks: a callable, its batch, and its sizes."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.errors import PluginError, did_you_mean

VALID_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,98}[A-Za-z0-9_-])?")
"""Pattern of names that are valid file names on every system, and one word in a shell."""

DECLARED = ("name", "description", "args")
"""Attributes of a benchmark class that may also be class properties."""

TOLERANCE: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
}
"""Maximum relative distance from float64, by the dtype of the computation."""


@dataclass(frozen=True)
class BenchmarkArg:
    """An argument of a benchmark's `__init__`."""

    name: str

    description: str
    """Meaning of the argument and its default, in a sentence."""


class Benchmark(ABC):
    """A callable and the batch that it is timed on.

    `name`, `description` and `args` are class attributes or class properties. `__init__` takes
    `args` first, in order; further parameters have defaults. A subclass without a name is an
    abstract base.
    """

    name: str = ""
    """Short unique name, valid as a file name."""

    description: str = ""
    """Description in a short sentence."""

    args: tuple[BenchmarkArg, ...] = ()
    """Arguments that a user may set."""

    operation: str = ""
    """Operation for which executors may have kernels: `rms_norm`, `cross_entropy`, ..."""

    sizes: Mapping[str, Mapping[str, object]] = {}
    """Keyword arguments of `__init__` by the name of a size; `tiny` computes in milliseconds."""

    tolerance: Mapping[str, float] = TOLERANCE
    """Maximum relative distance of outputs and gradients from float64, by dtype."""

    scales: tuple[float, ...] = (0.125, 4.0)
    """Factors of the inputs for further comparisons; empty if scaled inputs are meaningless."""

    requires_grad: bool = True
    """True if there is a backward pass."""

    counts_bytes: bool = False
    """True if bytes are counted by default: each input and weight read once, each output written
    once, and likewise all gradients."""

    unread: tuple[str, ...] = ()
    """Tensors that a backward pass need not read, such as a bias: weights' names, `input 0`."""

    keeps_inputs: bool = True
    """True if a callable must not overwrite the batch. False for inputs that a model does not read
    again, such as the logits of a loss."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for key in DECLARED:
            if key in vars(cls):
                setattr(cls, key, _class_value(cls, key))
        if problem := next(_problems(cls), ""):
            raise PluginError(f"benchmark {cls.__module__}.{cls.__qualname__}: {problem}")
        if "fn" in vars(cls):
            setattr(cls, "fn", _remembered(cls.fn))  # noqa: B010 - mypy takes a method for fixed
        if "make_batch" in vars(cls):
            setattr(cls, "make_batch", _with_owner(cls.make_batch))  # noqa: B010 - as above

    def __init__(self, *_: object) -> None:
        """Accept and ignore arguments, so that a subclass may call `super().__init__(self)`."""
        super().__init__()

    @classmethod
    def at_size(cls, size: str = "", **settings: object) -> Any:
        """Return the benchmark at a named size; an empty name means the defaults of `__init__`.

        `settings` are arguments such as `device` and `dtype`. Arguments that the size sets, or that
        `__init__` does not know, are ignored. Raises PluginError for an unknown size.
        """
        if size and size not in cls.sizes:
            hint = did_you_mean(size, cls.sizes) or "; it has none"
            raise PluginError(f"benchmark {cls.name!r} has no size {size!r}{hint}")
        given = dict(cls.sizes[size]) if size else {}
        known = {key: value for key, value in settings.items() if key in _parameters(cls)}
        try:
            return cls(**{**known, **given})
        except TypeError as error:
            raise PluginError(f"benchmark {cls.name!r}, size {size!r}: {error}") from error

    @abstractmethod
    def make_batch(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the positional and keyword arguments of a call, with reproducible values."""

    @abstractmethod
    def fn(self) -> Callable[..., Any]:
        """Return the callable to time: a function or a `torch.nn.Module`."""

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable that computes the same as `fn` in float64, with the same weights.

        The default is a float64 copy of a module; a function is returned unchanged and must compute
        in the dtype of its inputs.
        """
        import torch

        return copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn

    def reference_with_choices(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return a float64 callable that makes the same discrete choices as `fn`, or None.

        Rounding decides close choices, such as the experts that a router selects. The result is
        None for a benchmark without such choices.
        """
        return None

    def postprocess_for_backward(self, out: Any) -> Any:
        """Return the tensor of an output at which the backward pass starts; None without one.

        The default is the output itself, or the first element of a sequence.
        """
        is_sequence = isinstance(out, Sequence) and not isinstance(out, str | bytes)
        return out[0] if is_sequence and len(out) else out

    def unavailable(self) -> str:
        """Return why the benchmark cannot be built, such as a missing library; empty if it can."""
        return ""

    def flops(self) -> int | None:
        """Return the FLOPs of one forward call; None if they are not meaningful."""
        return None

    def bytes_moved(self) -> int | None:
        """Return the minimum bytes that one forward call reads and writes; None if unknown."""
        return None

    def backward_flops(self) -> int | None:
        """Return the FLOPs of one backward call; by default twice the forward FLOPs."""
        flops = self.flops()
        return None if flops is None else 2 * flops

    def backward_bytes_moved(self) -> int | None:
        """Return the minimum bytes that one backward call reads and writes; None if unknown."""
        return None

    @property
    def returned_fn(self) -> Callable[..., Any] | None:
        """Callable that `fn()` last returned, with the weights; None before the first call."""
        return self.__dict__.get("_returned_fn")


def benchmark_of(batch: Any) -> Benchmark | None:
    """Return the benchmark that made a batch; None if unknown, or if `fn()` was never called."""
    owners = (reference() for tensor in _tensors(batch) if (reference := _owners().get(tensor)))
    return next(
        (owner for owner in owners if owner is not None and owner.returned_fn is not None), None
    )


def as_dtype(dtype: Any) -> Any:
    """Return a `torch.dtype`, given as such or by name. Raises PluginError for an unknown name."""
    import torch

    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(resolved, torch.dtype):
        raise PluginError(f"torch has no dtype {dtype!r}; use one such as float32 or bfloat16")
    return resolved


def _class_value(cls: type, key: str) -> Any:
    """Return the value of a class attribute, of a property, or of a class property.

    Class properties are evaluated here, since Python 3.13 dropped properties of classmethods.
    """
    value = vars(cls)[key]
    if isinstance(value, classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value(cls) if inspect.isfunction(value) else value


def _problems(cls: type[Benchmark]) -> Iterator[str]:
    """Yield what is wrong in a class's declaration of name, arguments and sizes.

    A class without a name has no problems, since it is an abstract base.
    """
    if cls.name == "":
        return
    if not isinstance(cls.name, str) or not VALID_NAME.fullmatch(cls.name):
        yield (
            f"name {cls.name!r} is no valid file name; use letters, digits, '_', '-' and '.', "
            "such as llama_mlp"
        )
    names, parameters = [arg.name for arg in cls.args], _parameters(cls)
    for name in names:
        if name not in parameters:
            near = did_you_mean(name, parameters) or "; it takes none"
            yield f"argument {name!r} is not taken by __init__{near}"
    first, others = list(parameters)[: len(names)], list(parameters.values())[len(names) :]
    if first != names:
        yield (
            f"__init__ must take the arguments first, in the order of args: {', '.join(names)}; "
            f"it begins with {', '.join(first)}"
        )
    for arg in others:
        if arg.default is arg.empty and arg.kind not in (arg.VAR_POSITIONAL, arg.VAR_KEYWORD):
            yield (
                f"__init__ needs {arg.name!r}, which is not in args; give it a default, or declare "
                f"BenchmarkArg({arg.name!r}, ...)"
            )
    if any(arg.kind is arg.VAR_KEYWORD for arg in others):
        return
    for size, given in cls.sizes.items():
        for name in given:
            if name not in parameters:
                near = did_you_mean(name, parameters)
                yield f"size {size!r} sets {name!r}, which __init__ does not take{near}"


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class's `__init__` by name, without `self`."""
    return inspect.signature(cls).parameters


def _remembered(fn: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Callable[..., Any]]:
    """Return a wrapper of the method `fn` that stores each result in the benchmark."""

    @functools.wraps(fn)
    def method(self: Benchmark) -> Callable[..., Any]:
        self.__dict__["_returned_fn"] = returned = fn(self)
        return returned

    return method


def _with_owner(make_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a wrapper of `make_batch` that records which benchmark made each tensor."""

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
    """Return the mapping from tensors of batches to weak references to their benchmarks."""
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()


def _tensors(batch: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
