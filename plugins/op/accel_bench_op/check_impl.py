"""Comparison of outputs and gradients with the benchmark's own callable in float64.

The distance of two tensors is their error relative to the expected tensor.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from accel_bench.errors import PluginError
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench_op.benchmark import Benchmark

LEAST_SCALE = 1e-3
"""Divisor for errors of a gradient that is zero but for rounding, as a fraction of the largest
gradient."""

ROUNDING = 1e-10
"""Largest float64 value of a gradient that counts as zero, relative to the largest gradient."""

SEED = 0
"""Seed of the random cotangents, which start backward passes."""


@dataclass(frozen=True)
class Check:
    """Result of comparing a callable with float64."""

    distances: Mapping[str, float]
    """Relative distance by tensor, the output first."""

    dtype: str
    """Dtype of the computation: the shortest of inputs, weights and eager's outputs."""

    tolerance: float
    """Maximum allowed distance for this dtype."""

    problem: str = ""
    """Reason why nothing can be compared, such as a missing output; empty otherwise."""

    undecided: str = ""
    """Reason why a difference is inconclusive: eager differs as much, or is random; else empty."""

    same_choices: bool = False
    """True if the reference was given eager's choices, such as experts, since its own differ."""

    size: str = ""
    """Benchmark size of the comparison, if memory ran out in float64 at the cell's size."""

    @property
    def distance(self) -> float:
        """Largest relative distance of all compared tensors."""
        return math.inf if self.problem else max(self.distances.values(), default=math.inf)

    @property
    def reason(self) -> str:
        """Reason why the callable is wrong; empty if it is right."""
        if self.undecided:
            return ""
        wrong = (name for name, distance in self.distances.items() if distance > self.tolerance)
        if not (first := next(wrong, "")):
            return f"invalid: {self.problem}" if self.problem else ""
        return (
            f"invalid: {first} is off by {self.distances[first]:.3g} of its size from eager in "
            f"float64; {self.dtype} may be off by {self.tolerance:.3g}"
        )


class _Mismatch(Exception):
    """Exception for results that cannot be compared."""


def check_against_float64(
    benchmark: Benchmark,
    fn: Callable[..., Any],
    batch: tuple[Sequence[Any], Mapping[str, Any]],
    gradients: bool,
) -> Check:
    """Compare a callable with `benchmark.reference()` in float64 on a copy of the batch.

    The outputs are compared, and with `gradients` also the gradients of inputs and weights, from a
    random cotangent for each output. Integers and booleans must be equal. The check is undecided if
    eager, too, is outside the tolerance, even with equal choices. Raises PluginError if the
    reference fails.
    """
    original = benchmark.returned_fn or benchmark.fn()
    out = called(_copy_of(original), _copied(batch), False)
    dtype = coarsest_dtype(batch, original, list(dict(named_tensors(out, "output")).values()))
    del out
    # Before a call changes them, as an optimizer's does.
    eager, kept = _copy_of(original), _copied(batch)
    fns = fn, original, benchmark.reference(original)
    check = _compare(benchmark, fns, batch, dtype, gradients)
    if not check.reason or check.problem:
        return check
    fns = eager, eager, benchmark.reference(eager)
    own = _compare(benchmark, fns, _copied(kept), dtype, gradients)
    if not own.reason:
        return check
    if (chosen := benchmark.reference_with_choices(eager)) is not None:
        again = _compare(benchmark, (fn, original, chosen), batch, dtype, gradients)
        if not again.reason:
            return replace(again, same_choices=True)
    return replace(check, undecided=_why_undecided(own, eager, kept))


def _compare(
    benchmark: Benchmark, fns: tuple[Any, Any, Any], batch: Any, dtype: str, gradients: bool
) -> Check:
    """Return the check of the first of three callables: tested, eager, and float64 reference.

    The outputs are compared with those of the reference, and with `gradients` also the gradients.
    `dtype` is the dtype of the computation, which sets the tolerance.
    """
    fn, original, reference = fns
    # It is called with the batch itself, not a copy: with its strides and its addresses.
    theirs = _copied(batch, double=True)
    theirs_out = _reference_output(benchmark, reference, theirs, gradients)
    out = called(fn, batch, gradients)
    outputs = dict(named_tensors(out, "output"))
    tolerance = benchmark.tolerance.get(dtype, 0.0)
    distances: dict[str, float] = {}
    try:
        _refuse_coarser(outputs, dtype)
        expected = dict(named_tensors(theirs_out, "output"))
        distances |= _distances(outputs, expected)
        if not distances:
            raise _Mismatch("nothing to compare: eager's output holds no tensor")
        if benchmark.keeps_inputs:
            distances |= _overwritten(batch, theirs, tolerance)
        # A wrong output decides it: one that is remembered may have lost what gradients need.
        right = max(distances.values()) <= tolerance
        if gradients and benchmark.requires_grad and right:
            weights = _weights(original), _weights(fn), _weights(reference)
            sides = _gradient_pairs(benchmark, (out, theirs_out), (batch, theirs), weights)
            distances |= _distances(*sides, least=LEAST_SCALE)
    except _Mismatch as error:
        return Check(distances, dtype, tolerance, str(error))
    return Check(distances, dtype, tolerance)


def _overwritten(batch: Any, theirs: Any, tolerance: float) -> dict[str, float]:
    """Return the distance, by name, of each input that a callable overwrites unlike the reference.

    `batch` is the tested callable's batch after its call, and `theirs` the reference's batch after
    the reference's call. Distances up to `tolerance` are left out.
    """

    def plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        named = dict(named_tensors([*args, kwargs], "input"))
        return {name: tensor.detach() for name, tensor in named.items() if not tensor.is_nested}

    distances = _distances(plain(*batch), plain(*theirs))
    return {
        f"{name} after the call": distance
        for name, distance in distances.items()
        if distance > tolerance
    }


def _copy_of(original: Any) -> Any:
    """Return a copy of a module; a function or an uncopyable module is returned unchanged."""
    if not isinstance(original, torch.nn.Module):
        return original
    try:
        return copy.deepcopy(original)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if out_of_memory(error) is not None:
            raise
        return original


def _why_undecided(own: Check, eager: Any, batch: Any) -> str:
    """Return a sentence on why eager is no reference: it is random, or far from float64.

    `own` is the check of eager itself against float64.
    """
    calls = (called(eager, _copied(batch), False) for _ in range(2))
    first, second = (dict(named_tensors(out, "")) for out in calls)
    if first.keys() != second.keys() or any(not first[k].equal(second[k]) for k in first):
        return "not deterministic: no comparison, since two calls of eager differ"
    off = f"{own.distance:.3g} in {own.dtype}"
    return f"no comparison: eager itself is off from float64 by {off}"


def _refuse_coarser(found: Mapping[str, Any], dtype: str) -> None:
    """Raise _Mismatch if an output in `found` has a less precise dtype than eager's `dtype`."""
    for name, tensor in found.items():
        if not (dtype and tensor.is_floating_point()):
            continue
        if torch.finfo(tensor.dtype).eps > torch.finfo(getattr(torch, dtype)).eps:
            given = str(tensor.dtype).removeprefix("torch.")
            raise _Mismatch(f"{name} is in {given}, and eager computes in {dtype}")


def coarsest_dtype(batch: Any, fn: Any, outputs: Sequence[Any] = ()) -> str:
    """Return the name of the least precise dtype among inputs, weights and outputs.

    Dtypes of at most one byte are storage formats of weights, and do not count.
    """
    weights = fn.parameters() if isinstance(fn, torch.nn.Module) else ()
    tensors = [*dict(named_tensors([*batch[0], batch[1]], "")).values(), *weights, *outputs]
    kinds = {
        tensor.dtype
        for tensor in tensors
        if tensor.is_floating_point() and tensor.dtype.itemsize > 1
    }
    coarsest = max(kinds, key=lambda dtype: torch.finfo(dtype).eps, default="")
    return str(coarsest).removeprefix("torch.")


def _reference_output(benchmark: Benchmark, reference: Any, batch: Any, grad_mode: bool) -> Any:
    try:
        return called(reference, batch, grad_mode)
    except (RuntimeError, TypeError, ValueError) as error:
        if out_of_memory(error) is not None:
            raise
        raise PluginError(
            f"benchmark {benchmark.name!r} cannot be computed in float64: {error}; let its "
            "method reference() return a callable that can"
        ) from error


def called(fn: Callable[..., Any], batch: Any, grad_mode: bool) -> Any:
    """Return the output of a callable on a batch; with `grad_mode` it has autograd's graph."""
    with torch.set_grad_enabled(grad_mode):
        return fn(*batch[0], **batch[1])


def _copied(batch: Any, double: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """Return a copy of a batch whose tensors are autograd leaves; in float64 if `double`."""

    def copied(tensor: Any) -> Any:
        copy = tensor.detach().clone()
        copy = copy.double() if double and copy.is_floating_point() else copy
        return copy.requires_grad_(tensor.requires_grad)

    args, kwargs = batch
    result = tree_map_only(torch.Tensor, copied, (list(args), dict(kwargs)))
    return result[0], result[1]


def named_tensors(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in an output with their paths; a complex tensor has two real parts.

    `place` is the path of `value` itself.
    """
    if isinstance(value, torch.Tensor):
        yield place, torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{place} {key}")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, item in enumerate(value):
            yield from named_tensors(item, f"{place} {number}")


def _weights(fn: Any) -> dict[str, Any]:
    """Return a module's trainable parameters by name, without the prefix of torch.compile."""
    if not isinstance(fn, torch.nn.Module):
        return {}
    named = fn.named_parameters()
    return {name.removeprefix("_orig_mod."): param for name, param in named if param.requires_grad}


def _gradient_pairs(
    benchmark: Benchmark, outs: tuple[Any, Any], batches: tuple[Any, Any], weights: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return gradients of inputs and weights by name, of the tested and the reference callable.

    `outs` and `batches` are the outputs and the batches of these two. `weights` are three mappings
    of weights by name: of eager, the tested and the reference callable.
    """
    ours, theirs = (_ends(benchmark, out) for out in outs)
    if len(ours) != len(theirs):
        raise _Mismatch(f"{len(ours)} outputs require a gradient, {len(theirs)} of eager's do")
    if not theirs:
        return {}, {}
    cotangents = _cotangents(ours)
    of_original, of_fn, of_reference = weights
    # A module of its own may hold the weights under their names; else they are the benchmark's.
    held = {name: of_fn.get(name, weight) for name, weight in of_original.items()}
    # Before a backward pass that writes over the gradient that it is given, as fused norms' do.
    exact = [cotangent.double() for cotangent in cotangents]
    tested = _gradients(ours, cotangents, {**_inputs(batches[0]), **held})
    return tested, _gradients(theirs, exact, {**_inputs(batches[1]), **of_reference})


def _ends(benchmark: Benchmark, out: Any) -> list[Any]:
    """Return the tensors at which a backward pass starts: all outputs that require a gradient."""
    outputs = [tensor for _, tensor in named_tensors(out, "") if tensor.requires_grad]
    if outputs:
        return outputs
    tensor = benchmark.postprocess_for_backward(out)
    return [tensor] if getattr(tensor, "requires_grad", False) else []


def _cotangents(outputs: Sequence[Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        torch.randn(output.shape, generator=generator).to(device=output.device, dtype=output.dtype)
        for output in outputs
    ]


def _inputs(batch: Any) -> dict[str, Any]:
    args, kwargs = batch
    named = dict(named_tensors([*args, kwargs], "input"))
    return {name: tensor for name, tensor in named.items() if tensor.requires_grad}


def _gradients(outputs: Any, cotangents: Any, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of leaf tensors by name, without gradients that are None."""
    gradients = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)
    named = zip(leaves, gradients, strict=True)
    return {f"gradient of {name}": gradient for name, gradient in named if gradient is not None}


def _distances(
    found: Mapping[str, Any], expected: Mapping[str, Any], least: float = 0.0
) -> dict[str, float]:
    """Return the relative distance of each expected tensor by name.

    If the expected tensor is zero but for rounding, its error is divided by `least` times the
    largest expected value. Raises _Mismatch for a missing tensor, another shape or kind of dtype.
    """
    if missing := [name for name in expected if name not in found]:
        raise _Mismatch(f"there is no {missing[0]}, which eager computes")
    for name, tensor in expected.items():
        if tensor.shape != found[name].shape:
            shapes = f"{tuple(found[name].shape)}, that of eager {tuple(tensor.shape)}"
            raise _Mismatch(f"{name} has the shape {shapes}")
        if tensor.is_floating_point() != found[name].is_floating_point():
            raise _Mismatch(f"{name} is {found[name].dtype}, that of eager {tensor.dtype}")
    largest = max((_size(tensor) for tensor in expected.values() if least), default=0.0)
    scales = {
        name: least * largest if least and _size(tensor) <= ROUNDING * largest else 0.0
        for name, tensor in expected.items()
    }
    return {name: _distance(found[name], tensor, scales[name]) for name, tensor in expected.items()}


def _size(tensor: Any) -> float:
    finite = torch.nan_to_num(tensor.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    return float(finite.abs().max()) if tensor.numel() else 0.0


def _distance(found: Any, expected: Any, least: float) -> float:
    """Return the larger of two relative errors: by the largest element, and by the Euclidean norm.

    `least` is the smallest size by which errors are divided.
    """
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point():
        return 0.0 if bool((found == expected).all()) else math.inf
    exact, close = expected.detach(), found.detach().double()
    error = torch.where(close == exact, 0.0, close - exact)
    exact = torch.nan_to_num(exact, nan=0.0, posinf=0.0, neginf=0.0)
    size = max(_size(exact), least) or 1.0
    norm = max(float(exact.norm()), least * math.sqrt(exact.numel())) or 1.0
    worst = max(float(error.abs().max()) / size, float(error.norm()) / norm)
    return math.inf if math.isnan(worst) else worst
