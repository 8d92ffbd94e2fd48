"""Reading of a forward pass: dtypes of linear layers, dropout, and drawing of random numbers.

The first forward pass and one after the measured window are read, and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from accel_bench.analysis.wording import count, join_names
from accel_bench.engine import Batch
from accel_bench.modeling.module_calls import after_calls, is_compiled
from accel_bench.modeling.tensors import dtype_name
from accel_bench.run_context import Run
from accel_bench.worker.verify.kernels import plain_linears

PRODUCTS = ("AddmmBackward", "MmBackward", "BmmBackward", "LinearBackward", "MkldnnLinear")
"""Prefixes of the names of autograd's nodes for matmuls."""

REACH = 6
"""Largest number of autograd's nodes between a linear layer's output and its matmul."""

MOST_NODES = 32
"""Largest number of autograd's nodes of a linear layer that are visited."""

EXPECTED_DROPS = 16
"""Least expected number of dropped elements for which a dropout call is judged. By chance, one in
nine million such calls drops no element."""


class Product(NamedTuple):
    """Dtype of a linear layer's matmul, and the operations that led to its output."""

    dtype: str
    """Dtype of the layer's matmul."""

    operations: frozenset[str]
    """Names of autograd's nodes between the layer's input and output; empty without nodes."""


class Watch:
    """Base of classes that register hooks on modules, and can remove all of them."""

    _handles: list[Any]

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def at_first_lap(
    lap: Callable[..., None], check: Callable[[Sequence[Batch]], None]
) -> Callable[..., None]:
    """Return a function that runs `lap`, which ends a step; its first call runs `check` before."""
    waiting = [check]

    def checked_lap(batches: Sequence[Batch], loss: Any) -> None:
        if waiting:
            waiting.pop()(batches)
        lap(batches, loss)

    return checked_lap


class ForwardPass:
    """Observer of one forward pass of the model: what linear layers and dropout modules did.

    Compiled regions are left out: a hook there would be compiled, and its removal compile again.
    """

    def __init__(self, run: Run) -> None:
        self.products: dict[int, Product] = {}
        """Products of plain linear layers by module id, without adapters."""

        self.dropped: dict[int, bool] = {}
        """True for dropout modules that dropped elements, by module id; only called modules."""

        self.drew: bool | None = None
        """True if torch's generator drew random numbers; None if that was not seen."""

        self._run = run
        self._generator: torch.Tensor | None = None

    def watch(self) -> list[Any]:
        """Register the observing hooks on the model's modules; return the hooks' handles."""
        model = self._run.unwrapped_model
        if any(is_compiled(module) for module in model.modules()):
            return []
        drops = [module for module in model.modules() if _dropout(module)]
        return [
            model.register_forward_pre_hook(self._before),
            model.register_forward_hook(self._after),
            *(after_calls(layer, self._see_product) for layer in plain_linears(model)),
            *(after_calls(module, self._see_dropout) for module in drops),
        ]

    @property
    def matmul_dtypes(self) -> dict[str, int]:
        """Number of linear layers by the dtype of their matmul, the largest number first."""
        return dict(Counter(product.dtype for product in self.products.values()).most_common())

    def changes(
        self, later: ForwardPass, dropout: Mapping[str, int]
    ) -> tuple[list[str], list[str]]:
        """Return two lists of texts on how a `later` forward pass differs: why the run is
        `degraded`, and why it is `invalid`. `dropout` has, for the later pass, the number of
        modules by dropout probability."""
        invalid = [*_other_dtypes(self.products, later.products), *self._fewer_drops(later)]
        if dropout and self.drew and later.drew is False and not invalid:
            invalid.append(
                "no random number was drawn in a forward pass after the window, and some were in "
                f"the first step, whose dropout is {', '.join(dropout)}"
            )
        return [*_other_operations(self.products, later.products)], invalid

    def _before(self, *_: Any) -> None:
        self._generator = _generator_state(self._run.device.type)

    def _after(self, *_: Any) -> None:
        state, before = _generator_state(self._run.device.type), self._generator
        if state is not None and before is not None:
            self.drew = bool(self.drew) or not torch.equal(before, state)

    def _see_product(self, module: Any, inputs: Any, output: Any) -> None:
        if id(module) not in self.products and isinstance(output, torch.Tensor):
            operations = frozenset(_operations(output, inputs))
            dtype = dtype_name(_dtype_of_product(output))
            self.products[id(module)] = Product(dtype, operations)

    def _see_dropout(self, module: Any, inputs: Any, output: Any) -> None:
        """Record whether a dropout module dropped elements, unless it works in place."""
        if id(module) in self.dropped or not (inputs and isinstance(inputs[0], torch.Tensor)):
            return
        given = inputs[0]
        if output is given and module.inplace:
            return
        if _dropout(module) * given.count_nonzero().item() >= EXPECTED_DROPS:
            self.dropped[id(module)] = not torch.equal(given, output)

    def _fewer_drops(self, later: ForwardPass) -> Iterator[str]:
        before = {module for module, drops in self.dropped.items() if drops}
        off = [module for module in before if later.dropped.get(module) is False]
        if off:
            yield (
                f"{len(off)} of {len(before)} modules that dropped elements in the first step drop "
                "none after the window"
            )


def _other_dtypes(first: Mapping[int, Product], later: Mapping[int, Product]) -> Iterator[str]:
    """Yield a text for each change of linear layers' dtypes from the first to the later pass."""
    pairs = Counter(
        (first[layer].dtype, product.dtype) for layer, product in later.items() if layer in first
    )
    for (before, after), layers in pairs.items():
        if before != after:
            yield (
                f"{layers} of {len(first)} linear modules compute in {after} after the window, and "
                f"did in {before} in the first step"
            )


def _other_operations(first: Mapping[int, Product], later: Mapping[int, Product]) -> Iterator[str]:
    """Yield a text if layers of the same dtype did other operations in the later pass."""
    pairs = [(first[layer], product) for layer, product in later.items() if layer in first]
    same = [(before, after) for before, after in pairs if before.dtype == after.dtype]
    # What was frozen in one of the two has no nodes there.
    traced = [(before, after) for before, after in same if before.operations and after.operations]
    others = [(before, after) for before, after in traced if before.operations != after.operations]
    if others:
        new = {name for before, after in others for name in after.operations - before.operations}
        by = f", by {join_names(sorted(new))}" if new else ""
        yield (
            f"{count(len(others), f'of {len(first)} linear module')} compute otherwise after the "
            f"window than in the first step{by}"
        )


def _dropout(module: Any) -> float:
    known = isinstance(module, torch.nn.modules.dropout._DropoutNd)
    return module.p if known else 0.0


def _generator_state(device_type: str) -> torch.Tensor | None:
    """Return the state of the device's random generator; None if it cannot be read now."""
    if device_type == "cpu":
        return torch.get_rng_state()
    kind: Any = torch.get_device_module(device_type)
    if getattr(kind, "is_current_stream_capturing", bool)():
        return None
    read = getattr(kind, "get_rng_state", None)
    return None if read is None else read()


def _dtype_of_product(output: torch.Tensor) -> torch.dtype:
    """Return the dtype of the matmul in a linear layer with this output, else the output's dtype.

    A replaced forward may cast to another dtype and back; then only the matmul's autograd node
    shows its dtype. Only the node's description of its output is read: reading a tensor that it
    saved may recompute the tensor, or copy it back from the host.
    """
    for node in _nodes(output.grad_fn):
        if node.name().startswith(PRODUCTS):
            dtype: torch.dtype = node._input_metadata[0].dtype
            return dtype
    return output.dtype


def _nodes(node: Any) -> Iterator[Any]:
    """Yield up to `REACH` autograd nodes, from `node` back along the first input of each node."""
    for _ in range(REACH):
        if node is None:
            return
        yield node
        node = next((before for before, _ in node.next_functions if before is not None), None)


def _operations(output: torch.Tensor, inputs: Any) -> Iterator[str]:
    """Yield the names of the autograd nodes between a module's inputs and its output.

    Yields none for a module whose first input is no tensor.
    """
    if not (inputs and isinstance(inputs[0], torch.Tensor)):
        return
    seen = {value.grad_fn for value in inputs if isinstance(value, torch.Tensor)} | {None}
    waiting: list[Any] = [output.grad_fn]
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop(0)
        if node not in seen:
            seen.add(node)
            yield node.name()
            waiting += [before for before, _ in node.next_functions]
