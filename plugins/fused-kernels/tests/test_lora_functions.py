"""The autograd functions of fused LoRA, against numerical gradients and against plain torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accel_bench_fused_kernels.impl.lora import GELUS, SILU
from accel_bench_fused_kernels.impl.lora_functions import GatedMlp, gated_mlp, project
from accel_bench_fused_kernels.impl.lora_products import BaseProduct
from torch.nn import functional

ACTIVATIONS = {"silu": SILU, "gelu": GELUS["none"], "gelu-tanh": GELUS["tanh"]}

PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu-tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}


class Base:
    """A frozen float64 matrix that counts its dequantizations."""

    def __init__(self, rows: int, columns: int, bias: bool) -> None:
        self.weight = torch.randn(rows, columns, dtype=torch.float64)
        self.bias = torch.randn(rows, dtype=torch.float64) if bias else None
        self.asked = 0

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        self.asked += 1
        return self.weight.to(dtype)

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self.dequantize(inputs.dtype), self.bias)

    def projection(self, **settings: Any) -> BaseProduct:
        kinds = {"adapter_dtype": torch.float64, "dropout_dtype": torch.float64}
        features = len(self.weight)
        return BaseProduct(self.dequantize, self.multiply, features, **kinds, **settings)


class Uncounted(Base):
    """A base without counting, a side effect that cannot be compiled."""

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def drawn(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def pair(rows: int, columns: int, rank: int) -> list[torch.Tensor]:
    return [drawn(rank, columns), drawn(rows, rank)]


def plain(projection: BaseProduct, inputs: torch.Tensor, down: Any, up: Any) -> torch.Tensor:
    """PEFT's computation in its order."""
    answer = projection.multiply(inputs)
    if down is None:
        return answer
    left = functional.dropout(inputs, projection.dropout)
    return answer + left @ down.T @ up.T * projection.scaling


def seeds_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """Seed each call, as numerical gradients need equal draws."""

    def seeded(*tensors: Any) -> Any:
        torch.manual_seed(1)
        return function(*tensors)

    return seeded


@pytest.mark.parametrize(
    "dropout, frozen_input, bias",
    [(0.0, False, True), (0.0, True, False), (0.4, False, False), (0.4, True, True)],
)
def test_gradients_of_projections_of_one_input(dropout, frozen_input, bias):
    projections = [
        Base(3, 4, bias).projection(scaling=2.0, dropout=dropout),
        Base(2, 4, bias).projection(scaling=0.5),
        Base(3, 4, bias).projection(),
        Base(2, 4, bias).projection(scaling=1.0, dropout=dropout and 0.2),
    ]
    matrices = [*pair(3, 4, 2), *pair(2, 4, 3), None, None, *pair(2, 4, 1)]
    inputs = drawn(1, 3, 4, grad=not frozen_input)

    def fused(inputs: Any, *matrices: Any) -> Any:
        return project(projections, inputs, matrices)

    def unfused(inputs: Any, *matrices: Any) -> Any:
        pairs = zip(projections, matrices[::2], matrices[1::2], strict=True)
        return tuple(plain(projection, inputs, *both) for projection, *both in pairs)

    assert torch.autograd.gradcheck(seeds_itself(fused), (inputs, *matrices))
    answers, expected = (
        seeds_itself(fused)(inputs, *matrices),
        seeds_itself(unfused)(inputs, *matrices),
    )
    for answer, other in zip(answers, expected, strict=True):
        torch.testing.assert_close(answer, other)


@pytest.mark.parametrize(
    "activation, dropout, adapted, frozen_input, bias",
    [
        ("silu", 0.0, "gud", False, False),
        ("silu", 0.4, "gud", False, True),
        ("silu", 0.4, "gd", True, False),
        ("silu", 0.0, "d", True, True),
        ("gelu-tanh", 0.0, "gud", False, True),
        ("gelu", 0.4, "gd", False, False),
    ],
)
def test_gradients_of_a_gated_mlp(activation, dropout, adapted, frozen_input, bias):
    settings = {"scaling": 3.0, "dropout": dropout}
    mlp = GatedMlp(
        Base(4, 3, bias).projection(**settings),
        Base(4, 3, bias).projection(**settings),
        Base(2, 4, bias).projection(scaling=0.3, dropout=dropout),
        ACTIVATIONS[activation],
    )
    matrices = [
        *(pair(4, 3, 2) if "g" in adapted else [None, None]),
        *(pair(4, 3, 1) if "u" in adapted else [None, None]),
        *pair(2, 4, 2),
    ]
    inputs = drawn(1, 3, 3, grad=not frozen_input)

    def fused(inputs: Any, *matrices: Any) -> Any:
        return gated_mlp(mlp, inputs, matrices)

    def unfused(inputs: Any, *matrices: Any) -> Any:
        gate = plain(mlp.gate, inputs, *matrices[:2])
        product = PLAIN[activation](gate) * plain(mlp.up, inputs, *matrices[2:4])
        return plain(mlp.down, product, *matrices[4:])

    fused, unfused = seeds_itself(fused), seeds_itself(unfused)
    assert torch.autograd.gradcheck(fused, (inputs, *matrices))
    torch.testing.assert_close(fused(inputs, *matrices), unfused(inputs, *matrices))


def test_random_numbers_after_a_backward_are_those_without_it():
    projection = Base(7, 5, False).projection(dropout=0.4)
    inputs, matrices = drawn(3, 5), pair(7, 5, 2)
    (answer,) = project([projection], inputs, matrices)
    state = torch.get_rng_state()
    answer.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("frozen_input, asked", [(False, 2), (True, 1)])
def test_an_input_without_gradient_costs_no_product_in_the_backward(frozen_input, asked):
    base = Base(7, 5, False)
    (answer,) = project([base.projection()], drawn(3, 5, grad=not frozen_input), pair(7, 5, 2))
    answer.sum().backward()
    assert base.asked == asked


def test_outputs_that_nobody_uses_cost_nothing_in_the_backward():
    used, unused = Base(7, 5, False), Base(4, 5, False)
    inputs, matrices = drawn(3, 5), [*pair(7, 5, 2), *pair(4, 5, 2)]
    answer, _ = project([used.projection(), unused.projection()], inputs, matrices)
    answer.sum().backward()
    assert (used.asked, unused.asked) == (2, 1)
    assert matrices[2].grad is None
    assert matrices[0].grad is not None


def test_only_what_trains_gets_a_gradient():
    down, up = pair(7, 5, 2)
    down.requires_grad_(False)
    inputs = drawn(3, 5)
    (answer,) = project([Base(7, 5, False).projection()], inputs, [down, up])
    answer.sum().backward()
    assert down.grad is None
    assert up.grad is not None
    assert inputs.grad is not None


def test_a_second_derivative_is_refused_rather_than_wrong():
    inputs, matrices = drawn(3, 5), pair(7, 5, 2)
    (answer,) = project([Base(7, 5, False).projection()], inputs, matrices)
    (gradient,) = torch.autograd.grad(answer.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# Dynamo itself makes one to trace with.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_a_compiled_forward_returns_was_not_written_in_place():
    """Dynamo of torch 2.11 cuts the gradient of what an operation in place has returned."""
    projection = Uncounted(5, 5, True).projection()
    matrices = pair(5, 5, 2)
    graphs = []

    def keep(module, inputs):
        parts = dict(module.named_modules())
        graphs.extend(part.code for name, part in parts.items() if name.startswith("fwd_body"))
        return module

    torch.compiler.reset()
    torch.compile(
        lambda inputs: project([projection], inputs, matrices)[0], backend=keep, fullgraph=True
    )(drawn(2, 3, 5))
    forward = "\n".join(graphs)
    assert "addmm" in forward
    assert "addmm_(" not in forward
    assert "add_(" not in forward


# Dynamo itself makes one to trace with.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_compiled_functions_return_what_eager_ones_do(dropout):
    three = [Uncounted(5, 5, True).projection(dropout=dropout) for _ in range(3)]
    mlp = GatedMlp(three[0], replace(three[1], scaling=2.0), three[2], SILU)
    inputs = drawn(2, 3, 5)
    matrices = [matrix for _ in range(3) for matrix in pair(5, 5, 2)]

    def compute(inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = project(three, inputs, matrices)
        return gated_mlp(mlp, query * key + value, matrices).square().sum()

    # The probability would become a variable, which it is not in a model.
    torch.compiler.reset()
    compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
    found = []
    for function in (compute, compiled):
        torch.manual_seed(1)
        found.append(torch.autograd.grad(function(inputs), [inputs, *matrices]))
    torch.testing.assert_close(*found)
