"""Each kernel against float64, forward and backward, at sizes that do not fill a block."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_bench_fused_kernels.impl import liger_kernels
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore")

CLOSE = 2e-5
"""Maximum distance relative to the largest value, in float32."""


def agree(function: Any, reference: Any, *inputs: torch.Tensor) -> None:
    """Check values and gradients of all inputs against a float64 reference."""
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    theirs = [tensor.double().requires_grad_() for tensor in inputs]
    # Outputs of other operations, since some kernels write into what they are given.
    found, expected = function(*(x * 1 for x in ours)), reference(*(x * 1 for x in theirs))
    found, expected = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (found, expected))
    weights = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape) for y in expected]
    near(found, expected)
    sum((y * w.float()).sum() for y, w in zip(found, weights, strict=True)).backward()
    sum((y * w).sum() for y, w in zip(expected, weights, strict=True)).backward()
    near([x.grad for x in ours], [x.grad for x in theirs])


def near(found: list[Any], expected: list[Any]) -> None:
    """Check that each tensor equals a reference up to rounding."""
    for ours, theirs in zip(found, expected, strict=True):
        error = (ours.double() - theirs).abs().max() / theirs.abs().max().clamp_min(1e-3)
        assert error.item() < CLOSE


release = pytest.mark.release


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(3, 33), pytest.param(7, 100, marks=release), pytest.param(1, 5, marks=release)],
)
@pytest.mark.parametrize(
    ("offset", "in_float32", "shared"), [(0.0, False, False), (1.0, True, False), (1.0, True, True)]
)
def test_rms_norm(rows: int, columns: int, offset: float, in_float32: bool, shared: bool) -> None:
    torch.manual_seed(0)
    forward = liger_kernels.norm_forward(offset, in_float32, shared)

    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return forward(SimpleNamespace(weight=weight, eps=1e-5), x)

    def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * (offset + weight)

    agree(ours, reference, torch.randn(2, rows, columns), torch.randn(columns))


def test_the_backward_of_a_norm_that_shares_its_gradient_does_not_write_into_it() -> None:
    forward = liger_kernels.norm_forward(1.0, True, True)
    x = torch.randn(3, 33, requires_grad=True)
    gradient = torch.randn(3, 33)
    kept = gradient.clone()
    forward(SimpleNamespace(weight=torch.randn(33), eps=1e-5), x * 1).backward(gradient)
    assert torch.equal(gradient, kept)


@pytest.mark.parametrize(
    ("width", "positions"),
    [(12, 2), (6, 1), *(pytest.param(*one, marks=release) for one in ((12, 1), (6, 2)))],
)
def test_rotary_embedding(width: int, positions: int) -> None:
    """Positions of their own for each sample, too, as padding-free batches have them."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    torch.manual_seed(0)
    angles = torch.randn(positions, 5, width // 2)
    angles = torch.cat((angles, angles), -1)
    rotate = liger_kernels.rotary(apply_rotary_pos_emb)

    def ours(q: torch.Tensor, k: torch.Tensor) -> Any:
        return rotate(q.transpose(1, 2), k.transpose(1, 2), angles.cos(), angles.sin())

    def reference(q: torch.Tensor, k: torch.Tensor) -> Any:
        turns = angles.double()
        return apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), turns.cos(), turns.sin())

    agree(ours, reference, torch.randn(2, 5, 3, width), torch.randn(2, 5, 1, width))


def test_another_layout_is_rotated_by_the_model_s_own_function() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, angles = torch.randn(2, 5, 3, 12), torch.randn(2, 5, 1, 12), torch.randn(1, 5, 12)
    arguments = (q, k, angles.cos(), angles.sin())
    expected = apply_rotary_pos_emb(*arguments, unsqueeze_dim=2)
    found = liger_kernels.rotary(apply_rotary_pos_emb)(*arguments, unsqueeze_dim=2)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize(
    ("name", "activation"), [("silu", functional.silu), ("gelu_tanh", gelu_tanh)]
)
@pytest.mark.parametrize("inner", [33, pytest.param(80, marks=release)])
def test_gated_mlp(name: str, activation: Any, inner: int) -> None:
    torch.manual_seed(0)

    def through(x: Any, gate: Any, up: Any, down: Any, forward: Any) -> Any:
        mlp = SimpleNamespace(
            gate_proj=lambda x: x @ gate, up_proj=lambda x: x @ up, down_proj=lambda x: x @ down
        )
        return forward(mlp, x)

    def reference(mlp: Any, x: torch.Tensor) -> torch.Tensor:
        return mlp.down_proj(activation(mlp.gate_proj(x)) * mlp.up_proj(x))

    matrices = [torch.randn(11, inner), torch.randn(11, inner), torch.randn(inner, 11)]
    agree(
        lambda *inputs: through(*inputs, liger_kernels.MLPS[name]),
        lambda *inputs: through(*inputs, reference),
        torch.randn(2, 3, 11),
        *matrices,
    )


def test_gate_of_experts() -> None:
    def reference(both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return functional.silu(gate) * up

    agree(lambda both: liger_kernels.silu_gate(None, both), reference, torch.randn(7, 66))


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "reduction"),
    [(7, 33, "sum"), (13, 160, "mean"), pytest.param(13, 160, "sum", marks=release)],
)
def test_cross_entropy(tokens: int, vocabulary: int, reduction: str) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, vocabulary, (tokens,))
    target[2:4] = -100

    def ours(logits: torch.Tensor) -> torch.Tensor:
        return liger_kernels.cross_entropy(
            logits, target, ignore_index=-100, reduction=reduction
        ).view(1)

    def reference(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, target, reduction=reduction).view(1)

    agree(ours, reference, torch.randn(tokens, vocabulary))


@pytest.mark.parametrize(
    ("tokens", "width", "vocabulary", "bias", "softcap"),
    [(7, 20, 33, False, None), (7, 20, 33, True, 3.0), (11, 11, 100, False, 3.0)],
)
def test_linear_cross_entropy(
    tokens: int, width: int, vocabulary: int, bias: bool, softcap: float | None
) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, vocabulary, (tokens,))
    target[2:4] = -100

    def ours(hidden: Any, weight: Any, *biases: Any) -> torch.Tensor:
        head = SimpleNamespace(weight=weight, bias=biases[0] if biases else None)
        return liger_kernels.linear_cross_entropy(
            hidden, head, target, ignore_index=-100, reduction="sum", softcap=softcap
        ).view(1)

    def reference(hidden: Any, weight: Any, *biases: Any) -> torch.Tensor:
        logits = functional.linear(hidden, weight, *biases)
        logits = logits if softcap is None else torch.tanh(logits / softcap) * softcap
        return functional.cross_entropy(logits, target, reduction="sum").view(1)

    inputs = [torch.randn(tokens, width), torch.randn(vocabulary, width) / math.sqrt(width)]
    agree(ours, reference, *inputs, *([torch.randn(vocabulary)] if bias else []))


def test_larger_chunks_of_the_loss_are_fewer_and_give_the_same() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(32, 8), torch.randn(64, 8)
    target = torch.randint(0, 64, (32,))
    products = []

    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is torch.ops.aten.mm.default and args[1].shape == (8, 64):
                products.append(args[0].shape[0])
            return function(*args, **(kwargs or {}))

    losses = []
    for chunk in (1, 4, 8):
        head = SimpleNamespace(weight=weight.clone().requires_grad_(), bias=None)
        with Counted():
            loss = liger_kernels.linear_cross_entropy(
                hidden.clone().requires_grad_(),
                head,
                target,
                ignore_index=-100,
                reduction="sum",
                softcap=None,
                chunk_mem_const=chunk,
            )
        losses.append(loss.item())
    assert products == [4] * 8 + [16] * 2 + [32]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
