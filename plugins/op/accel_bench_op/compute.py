"""Compute types of micro-benchmarks: inference, training forward, training backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from accel_bench.errors import AccelBenchError
from accel_bench_op.benchmark import Benchmark


class ComputeType(str, Enum):
    """Timed phase; its value is part of test ids, and of pytest-benchmark's files."""

    __str__ = str.__str__

    INFERENCE = "inference"
    """A call without gradients."""

    TRAINING_FORWARD = "forward"
    """A call that saves the tensors which its backward pass needs."""

    TRAINING_BACKWARD = "backward"
    """The backward pass alone."""


class NoBackwardError(AccelBenchError):
    """Exception for a benchmark without a backward pass."""


def compute_types_of(kind: type[Benchmark]) -> tuple[ComputeType, ...]:
    """Return the compute types that a benchmark supports on at least one device."""
    return tuple(ComputeType) if kind.requires_grad else (ComputeType.INFERENCE,)


class TimedCall:
    """Call of a callable on a batch. The clock runs during `run`, but not during `prepare`."""

    def __init__(
        self,
        compute_type: ComputeType,
        fn: Callable[..., Any],
        batch: tuple[Sequence[Any], Mapping[str, Any]],
        postprocess: Callable[[Any], Any],
    ) -> None:
        self.compute_type = compute_type
        self._fn = fn
        self._args, self._kwargs = batch
        self._postprocess = postprocess
        self._tensor: Any = None
        self._cotangent: Any = None
        self._leaves: list[Any] = []
        self.run: Callable[[], Any] = {
            ComputeType.INFERENCE: self._infer,
            ComputeType.TRAINING_FORWARD: self._forward,
            ComputeType.TRAINING_BACKWARD: self._backward,
        }[compute_type]

    def prepare(self) -> None:
        """Before a backward pass that is timed alone, clear gradients and run the forward pass.

        Do nothing before other calls. Raises NoBackwardError if no output requires a gradient.
        """
        if self.compute_type is not ComputeType.TRAINING_BACKWARD:
            return
        import torch

        for leaf in self._leaves:
            leaf.grad = None
        self._tensor = self._cotangent = None  # before the next graph needs the memory
        tensor = self._postprocess(self._forward())
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
            raise NoBackwardError("no backward pass: no output requires a gradient")
        self._leaves = self._leaves or leaves_of(tensor)
        self._tensor, self._cotangent = tensor, torch.randn_like(tensor)

    def close(self) -> None:
        """Free the graph of the forward pass and the gradients."""
        for leaf in self._leaves:
            leaf.grad = None
        self._tensor = self._cotangent = None
        self._leaves = []

    def _infer(self) -> Any:
        import torch

        with torch.no_grad():
            return self._fn(*self._args, **self._kwargs)

    def _forward(self) -> Any:
        return self._fn(*self._args, **self._kwargs)

    def _backward(self) -> None:
        self._tensor.backward(self._cotangent)


def leaves_of(tensor: Any) -> list[Any]:
    """Return the tensors whose `grad` a backward pass from `tensor` fills."""
    if tensor.grad_fn is None:
        return [tensor]
    waiting, seen, leaves = [tensor.grad_fn], {tensor.grad_fn}, []
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return leaves
