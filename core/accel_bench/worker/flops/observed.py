"""Matrix products observed in one forward pass: the workload of models other than decoders.

For each torch call that multiplies matrices the shapes of its operands are recorded, and which
operands need a gradient: they give the FLOPs of its backward pass. Masked attention scores are
counted, except in calls with `is_causal`. The workload is unknown if a weight is multiplied in a
call that cannot be observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from accel_bench.engine import Batch
from accel_bench.flops.workload import Matmul, Workload
from accel_bench.modeling.kept_elsewhere import shape_of
from accel_bench.modeling.random_state import keep_random_state
from accel_bench.modeling.sharding import is_sharded, reshard
from accel_bench.modeling.tensors import dtype_name
from accel_bench.run_context import Run
from accel_bench.worker.flops.matrices import UnknownPartError, packed_sizes

HIDDEN_BY_CAUSALITY = 0.5
"""Fraction of the attention scores that a causal mask hides."""

WITH_WEIGHTS = frozenset({"linear", "convolution"})
"""Names of products in which the last operand counts as a weight, whatever its class."""

OF_ATTENTION = frozenset({"scores", "values"})
"""Names of products in which no operand counts as a weight, whatever its class."""

DIVIDED = "ranks compute parts of one model together"
"""Reason text for products of sharded matrices, which are not counted."""

UNCOUNTED = frozenset(
    "bilinear chain_matmul conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc gru lstm "
    "multi_head_attention_forward multi_dot rnn_relu rnn_tanh scaled_mm _scaled_mm tensordot "
    "_grouped_mm grouped_mm".split()
)
"""Names of torch functions that multiply matrices, but cannot be counted here."""


def observe_workload(run: Run, batch: Batch) -> Workload:
    """Return the matrix products of one forward pass on `batch`, counted per input element.

    The pass computes the task's loss, uncompiled, and leaves random numbers and buffers unchanged.
    Raises UnknownPartError if a matrix product belongs to no known part of the model.
    """
    if run.data_parallel != run.world_size:
        raise UnknownPartError(DIVIDED)
    model = run.unwrapped_model
    device = torch.device(str(run.device))
    inputs = {name: value.to(device) for name, value in batch.inputs.items()}
    products = Products(batch.tokens.processed, model)
    eager = torch.compiler.set_stance("force_eager")
    # Libraries replace it by an autograd function, as DeepSpeed does for ZeRO-3, inside of which
    # nothing shows what needs a gradient.
    own_linear = patch.object(nn.functional, "linear", torch._C._nn.linear)
    unchanged = keep_random_state(device), _same_buffers(model), own_linear
    with contextlib.ExitStack() as stack:
        for context in (*unchanged, eager, run.autocast(), products):
            stack.enter_context(context)
        run.loss(model, inputs, batch.supervised_in_step)
    reshard(model)
    products.check(model)
    again = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    recomputed = None if again else False
    return Workload(
        matmuls=tuple(products.merged(recomputed)),
        flops_method="observed",
        observed_elements=batch.tokens.processed,
        observed_samples=batch.sequences,
        observed_pairs=batch.tokens.processed_pairs,
    )


class Products(TorchFunctionMode):
    """Collector of the matrix products of all torch calls within a block.

    Within the block every module of the model has a hook, since plugins whose kernels fuse several
    modules then leave them unfused. Inside a fused kernel it would not be visible which operands
    need a gradient.
    """

    def __init__(self, elements: int, model: nn.Module) -> None:
        super().__init__()
        self._elements = elements
        self._model = model
        self._handles: list[Any] = []
        self._found: dict[Matmul, float] = {}
        self._weights: set[int] = set()
        self._shapes: set[tuple[int, ...]] = set()
        self._called: dict[int, dict[str, int]] = {}
        """Ids of parameters by name, for each called module's id. They are read at the call, since
        FSDP2 replaces the parameters while a block computes."""

        self._problem = ""
        self._packed: nn.Module | None = None
        self._readers: Mapping[str, Callable[..., None]] = {
            "linear": self._linear,
            "addmm": lambda bias, a, b, **_: self._multiply(a, b),
            "baddbmm": lambda bias, a, b, **_: self._multiply(a, b),
            "matmul": self._multiply,
            "__matmul__": self._multiply,
            "__rmatmul__": lambda b, a: self._multiply(a, b),
            "mm": self._multiply,
            "bmm": self._multiply,
            "einsum": self._einsum,
            "scaled_dot_product_attention": self._attention,
        }

    def __enter__(self) -> Any:
        """Begin to collect matrix products, and to note which modules are called."""
        self._handles = [
            register_module_forward_pre_hook(self._see_call),
            register_module_forward_hook(self._see_return),
            *(module.register_forward_pre_hook(_see_nothing) for module in self._model.modules()),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """End collecting."""
        for handle in self._handles:
            handle.remove()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and record the matrix product in it, if any."""
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if self._packed is not None:
            return result
        if name in UNCOUNTED:
            self._problem = self._problem or f"torch.{name} is not counted"
        elif name in ("conv1d", "conv2d", "conv3d"):
            self._convolution(result, *args, **(kwargs or {}))
        elif name in self._readers:
            self._readers[name](*args, **(kwargs or {}))
        return result

    def _see_call(self, module: nn.Module, inputs: Any) -> None:
        if self._packed is None and (sizes := packed_sizes(module)) is not None:
            self._packed = module
            self._weights |= {id(weight) for weight in module.parameters(recurse=False)}
            self._add("linear", sizes, inputs[0].numel() / sizes[1], (inputs[0], None))

    def _see_return(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Record the parameters of a called module, and the end of a layer with packed weights."""
        own = module.named_parameters(recurse=False)
        self._called[id(module)] = {name: id(parameter) for name, parameter in own}
        self._packed = None if module is self._packed else self._packed

    def check(self, model: nn.Module) -> None:
        """Raise UnknownPartError if a product, or a weight of a called module, was not counted."""
        if self._problem:
            raise UnknownPartError(self._problem)
        for path, module in model.named_modules():
            called = self._called.get(id(module))
            if called is None or isinstance(module, nn.Embedding):
                continue
            for name, parameter in module.named_parameters(recurse=False):
                shape = shape_of(parameter)
                if len(shape) < 2 or shape[0] == 1 or called.get(name) in self._weights:
                    continue
                if shape not in self._shapes:
                    kind = type(module).__name__
                    raise UnknownPartError(f"{path} ({kind}) holds {name}")

    def merged(self, recomputed: bool | None) -> Iterator[Matmul]:
        """Yield each different matrix product once; its field `share` counts it per input element.

        `recomputed` is stored in each product: whether the backward pass computes it again.
        """
        for matmul, share in self._found.items():
            yield matmul.model_copy(update={"share": share, "recomputed": recomputed})

    def _linear(self, inputs: Any, weight: Any, bias: Any = None) -> None:
        rows, columns = weight.shape
        if is_sharded(weight):
            self._problem = DIVIDED
        self._note(weight)
        self._add("linear", (rows, columns), inputs.numel() / columns, (inputs, weight))

    def _convolution(self, found: Any, inputs: Any, weight: Any, *_: Any, **__: Any) -> None:
        rows = weight.shape[0]
        self._note(weight)
        sizes = rows, weight.numel() // rows
        self._add("convolution", sizes, found.numel() / rows, (inputs, weight))

    def _multiply(self, a: Any, b: Any, **_: Any) -> None:
        """Add the product of two matrices `a` and `b`, or of two batches of matrices."""
        columns = a.shape[-1]
        rows = b.shape[-1] if b.dim() > 1 else 1
        batches = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        count = torch.Size(batches).numel() * (a.shape[-2] if a.dim() > 1 else 1)
        self._note(b)
        self._note(a)
        self._add("matmul", (rows, columns), count, (a, b))

    def _einsum(self, equation: Any, *operands: Any) -> None:
        """Add an einsum of two operands; for more, the order of the products is unknown."""
        tensors = operands[0] if isinstance(operands[0], list | tuple) else operands
        if len(tensors) != 2 or not isinstance(equation, str) or "..." in equation:
            self._problem = self._problem or "torch.einsum is not counted"
            return
        sizes: dict[str, int] = {}
        written = equation.replace(" ", "").partition("->")[0].split(",")
        for letters, tensor in zip(written, tensors, strict=True):
            sizes |= dict(zip(letters, tensor.shape, strict=True))
        for tensor in tensors:
            self._note(tensor)
        self._add("einsum", (1, 1), prod(sizes.values()), tensors)

    def _attention(self, query: Any, key: Any, value: Any, *given: Any, **named: Any) -> None:
        """Add the two products of attention: queries with keys, and scores with values."""
        is_causal = named.get("is_causal", given[2] if len(given) > 2 else False)
        length, size = key.shape[-2], query.shape[-1]
        count = query.numel() / size
        hidden = HIDDEN_BY_CAUSALITY if is_causal else 0.0
        self._add("scores", (length, size), count, (query, key), hidden)
        self._add("values", (value.shape[-1], length), count, (query, key, value), hidden)

    def _add(
        self,
        name: str,
        sizes: tuple[int, int],
        count: float,
        operands: Sequence[Any],
        hidden: float = 0.0,
    ) -> None:
        """Add a product of `count` rows with a matrix; a mask hides the fraction `hidden` of it."""
        *inputs, weight = operands
        known = any(isinstance(operand, nn.Parameter) for operand in operands)
        matmul = Matmul(
            name=name,
            rows=sizes[0],
            columns=sizes[1],
            trains=_needs_gradient(weight),
            input_needs_gradient=any(map(_needs_gradient, inputs)),
            dtype=_dtype(inputs[0]),
            weight=name in WITH_WEIGHTS or (known and name not in OF_ATTENTION),
            hidden=hidden,
        )
        self._found[matmul] = self._found.get(matmul, 0.0) + count / self._elements

    def _note(self, weight: Any) -> None:
        self._weights.add(id(weight))
        if not isinstance(weight, nn.Parameter):
            self._shapes.add(tuple(weight.shape))


def _see_nothing(module: nn.Module, inputs: Any) -> None:
    """Do nothing: this hook only keeps its module from being fused with other modules."""


def _needs_gradient(tensor: Any) -> bool:
    """Return whether an operand needs a gradient; packed weights, passed as None, need none."""
    return tensor is not None and bool(tensor.requires_grad) and torch.is_grad_enabled()


def _dtype(inputs: Any) -> str:
    """Return the name of the dtype in which `inputs` are multiplied: their own, or autocast's."""
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        return dtype_name(torch.get_autocast_dtype(kind))
    return dtype_name(inputs.dtype)


@contextlib.contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers after the block, such as the averages of batch norms."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
