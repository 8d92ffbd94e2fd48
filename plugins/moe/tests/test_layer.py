"""A layer's experts against explicit float64 sums: forward and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

TOKENS = 37

IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")

IDLE = 3
"""Index of the expert without tokens."""


def routing(top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights for each token: uneven counts, one expert idle, one with a single token.

    Both have the shape (tokens, experts per token).
    """
    crowd = torch.randint(0, 2, (TOKENS, 1), generator=torch.Generator().manual_seed(1))
    chosen = torch.cat([crowd, torch.full_like(crowd, 2)], dim=1)[:, :top_k]
    chosen[20, 0] = 4
    if top_k == 2:
        chosen[20, 1] = 0
    assert IDLE not in chosen and int((chosen == 4).sum()) == 1
    weights = torch.rand(chosen.shape, generator=torch.Generator().manual_seed(2))
    return chosen, weights / weights.sum(1, keepdim=True)


def reference(experts: Any, hidden: Any, chosen: Any, weights: Any) -> torch.Tensor:
    """Token by token: the weighted sum of gated MLPs, of shape (tokens, hidden size)."""
    rows = []
    for token in range(len(hidden)):
        parts = []
        for place in range(chosen.shape[1]):
            number = int(chosen[token, place])
            both = experts["gate_up_proj"][number] @ hidden[token]
            gate, up = both[: len(both) // 2], both[len(both) // 2 :]
            answer = experts["down_proj"][number] @ (functional.silu(gate) * up)
            parts.append(weights[token, place] * answer)
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


def compute(layer: Any, dtype: torch.dtype, top_k: int) -> dict[str, torch.Tensor]:
    """Output of a layer, and all gradients; by the reference if `layer` is a dict."""
    chosen, weights = routing(top_k)
    hidden = torch.randn(TOKENS, 20, generator=torch.Generator().manual_seed(3))
    hidden, weights = (leaf.to(dtype).requires_grad_() for leaf in (hidden, weights))
    if isinstance(layer, dict):
        parameters = layer
        answer = reference(layer, hidden, chosen, weights)
    else:
        parameters = dict(layer.named_parameters())
        answer = layer(hidden, chosen, weights)
    outer = torch.randn(answer.shape, generator=torch.Generator().manual_seed(4))
    (answer * outer.to(dtype)).sum().backward()
    found = {"answer": answer.detach(), "hidden": hidden.grad, "weights": weights.grad}
    return {**found, **{name: leaf.grad for name, leaf in parameters.items()}}


@pytest.mark.parametrize("kind", ["Mixtral", "GraniteMoe", "Olmoe", "Qwen2Moe", "Qwen3Moe"])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_layer_and_all_its_gradients_are_those_of_the_float64_reference(
    bench: Any, kind: str, top_k: int, implementation: str
) -> None:
    layer = bench.layer(kind)
    layer.config._experts_implementation = implementation
    exact = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in layer.named_parameters()
    }
    expected = compute(exact, torch.float64, top_k)
    found = compute(layer, torch.float32, top_k)
    assert set(found) == {"answer", "hidden", "weights", "gate_up_proj", "down_proj"}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-4, atol=2e-5)
    assert expected["answer"].abs().mean() > 0.1
    assert not found["down_proj"][IDLE].any() and found["down_proj"][4].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_frozen_experts_pass_the_gradient_on_and_keep_none(bench: Any, implementation: str) -> None:
    layer = bench.layer("Mixtral")
    trained = compute(layer, torch.float32, 2)
    layer.zero_grad()
    layer.config._experts_implementation = implementation
    layer.requires_grad_(False)
    frozen = compute(layer, torch.float32, 2)
    assert frozen["down_proj"] is None and frozen["gate_up_proj"] is None
    torch.testing.assert_close(frozen["hidden"], trained["hidden"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_half_precision_differs_from_the_reference_by_its_own_rounding(
    bench: Any, dtype: torch.dtype, implementation: str
) -> None:
    model = bench.model(dtype=dtype, hidden_size=40, intermediate_size=24)
    layer = bench.layers(model)[0]
    layer.config._experts_implementation = implementation
    chosen, weights = routing(2)
    hidden = torch.randn(TOKENS, 40, generator=torch.Generator().manual_seed(3)).to(dtype)
    exact = {name: parameter.detach().double() for name, parameter in layer.named_parameters()}
    weights = weights.to(dtype)
    expected = reference(exact, hidden.double(), chosen, weights.double())
    found = layer(hidden, chosen, weights)
    assert found.dtype == dtype
    error = (found.double() - expected).norm() / expected.norm()
    assert error < 4 * torch.finfo(dtype).eps
