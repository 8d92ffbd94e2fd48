"""The formulas by themselves: what each part of a model costs for a token."""

from __future__ import annotations

from typing import Any

import pytest

from accel_bench.flops.formulas import hardware_flops, model_flops, recomputed_flops, visible
from accel_bench.flops.workload import Attention, Matmul, Workload

MATRIX = Matmul(name="m", rows=30, columns=20, count=2)
HEADS = Attention(heads=4, query_size=8, value_size=16, count=3)


def workload(*kinds: Matmul | Attention) -> Workload:
    return Workload(
        matmuls=tuple(kind for kind in kinds if isinstance(kind, Matmul)),
        attentions=tuple(kind for kind in kinds if isinstance(kind, Attention)),
    )


@pytest.mark.parametrize(
    ("trains", "input_needs_gradient", "flops_per_weight"),
    [(True, True, 6), (True, False, 4), (False, True, 4), (False, False, 2)],
)
def test_a_matrix_costs_six_four_or_two_flops_per_weight(
    trains: bool, input_needs_gradient: bool, flops_per_weight: int
) -> None:
    matrix = MATRIX.model_copy(
        update={"trains": trains, "input_needs_gradient": input_needs_gradient}
    )
    flops = model_flops(workload(matrix), 100)
    assert flops.causal == flops.non_causal == flops_per_weight * 2 * 30 * 20


def test_experts_cost_what_reaches_them() -> None:
    experts = MATRIX.model_copy(update={"count": 8, "share": 2 / 8})
    assert model_flops(workload(experts), 1) == model_flops(workload(MATRIX), 1)
    assert workload(experts).matmul_parameters == 8 * 600
    assert workload(experts).active_matmul_parameters == 2 * 600


def test_attention_costs_twelve_per_layer_head_size_and_length_and_half_of_it_causal() -> None:
    attention = Attention(heads=4, query_size=8, value_size=8, count=3)
    flops = model_flops(workload(attention), 100)
    assert flops.non_causal == 12 * 3 * 4 * 8 * 100
    assert flops.causal == flops.non_causal / 2


@pytest.mark.parametrize(
    ("query", "key", "value", "products"),
    [
        (True, True, True, 3 * 8 + 3 * 16),
        (True, False, False, 2 * 8 + 2 * 16),
        (False, True, False, 2 * 8 + 2 * 16),
        (True, False, True, 2 * 8 + 3 * 16),
        (False, False, True, 1 * 8 + 2 * 16),
        (False, False, False, 1 * 8 + 1 * 16),
    ],
)
def test_each_operand_of_attention_costs_a_product_where_it_needs_a_gradient(
    query: bool, key: bool, value: bool, products: int
) -> None:
    attention = HEADS.model_copy(
        update={
            "query_needs_gradient": query,
            "key_needs_gradient": key,
            "value_needs_gradient": value,
        }
    )
    assert model_flops(workload(attention), 10).non_causal == 2 * 4 * 3 * 10 * products


def test_recomputation_adds_a_forward_pass_of_what_is_recomputed_and_nothing_else() -> None:
    again = MATRIX.model_copy(update={"recomputed": True})
    attention = HEADS.model_copy(update={"recomputed": True})
    once, twice = workload(MATRIX, HEADS), workload(MATRIX, again, attention)
    assert recomputed_flops(once, 10).causal == 0
    assert hardware_flops(once, 10) == model_flops(once, 10)
    added = recomputed_flops(twice, 10)
    assert added.non_causal == 2 * 2 * 30 * 20 + 2 * 4 * 3 * 10 * (8 + 16)
    assert hardware_flops(twice, 10) == model_flops(twice, 10).plus(added)


@pytest.mark.parametrize(("length", "window"), [(64, 1), (64, 16), (64, 63), (48, 48), (32, 100)])
def test_a_window_shows_what_the_mask_of_transformers_lets_through(
    length: int, window: int
) -> None:
    """The mask keeps whole tokens on the diagonal, of which the convention counts halves."""
    seen = visible_tokens_of_transformers(length, window)
    by_formula = visible(HEADS.model_copy(update={"window": window}), length) / 2
    diagonal = 0.5 * min(window, length) / length
    assert by_formula == pytest.approx(seen - diagonal)


def visible_tokens_of_transformers(length: int, window: int) -> float:
    """Tokens that a token sees on average, by the mask that Mistral gets."""
    import torch
    from transformers import MistralConfig
    from transformers.masking_utils import create_sliding_window_causal_mask

    config = MistralConfig(sliding_window=window)
    config._attn_implementation = "eager"
    arguments: dict[str, Any] = {
        "config": config,
        "inputs_embeds": torch.zeros(1, length, 8),
        "attention_mask": None,
        "past_key_values": None,
    }
    mask = create_sliding_window_causal_mask(**arguments)
    assert mask.shape == (1, 1, length, length)
    return float((mask == 0).sum()) / length


def test_a_window_as_long_as_the_sequence_hides_nothing() -> None:
    wide = HEADS.model_copy(update={"window": 128})
    assert model_flops(workload(wide), 128) == model_flops(workload(HEADS), 128)
    assert model_flops(workload(wide), 129).causal < model_flops(workload(HEADS), 129).causal
