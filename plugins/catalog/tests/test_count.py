"""Catalog cards counted on the meta device: published parameters, windows, figures by hand."""

from __future__ import annotations

import pytest
from accel_bench_catalog import count
from accel_bench_catalog.count import ModelCount
from accel_bench_catalog.count_impl import count_model

from accel_bench.catalog.models import list_cards, read_card
from accel_bench.errors import AccelBenchError
from accel_bench.flops.formulas import model_flops
from accel_bench.flops.workload import Workload


def workload_of(counted: ModelCount) -> Workload:
    assert counted.problem == ""
    assert counted.workload is not None
    return counted.workload


CARDS = list_cards()


@pytest.mark.parametrize("name", [n for n, one in CARDS.items() if one.family == "text-generation"])
def test_every_card_has_its_published_parameters_and_a_workload(name: str) -> None:
    assert workload_of(count_model(read_card(name))).matmul_parameters > 0


@pytest.mark.parametrize("name", [n for n, one in CARDS.items() if one.family != "text-generation"])
def test_a_card_of_another_family_has_its_published_parameters(name: str) -> None:
    assert "observed in a run" in count_model(read_card(name)).problem


def test_a_window_from_a_certain_layer_on_is_counted_as_the_modules_have_it() -> None:
    changes = {
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 3,
    }
    card = read_card("qwen2.5-7b")
    layers = card.config["num_hidden_layers"]
    # 28 equal layers beside embeddings, output and the last norm.
    outside = 2 * card.config["vocab_size"] * card.config["hidden_size"]
    outside += card.config["hidden_size"]
    parameters = outside + (card.parameters - outside) // layers * 4
    config = {**card.config, **changes}
    counted = count_model(card.model_copy(update={"config": config, "parameters": parameters}))
    windows = [(one.window, one.count) for one in workload_of(counted).attentions]
    assert windows == [(None, 3), (64, 1)]


def test_llama_2_7b_costs_46_084_915_200_flops_for_a_token_at_4096_by_hand() -> None:
    workload = workload_of(count_model(read_card("llama-2-7b")))
    matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096
    assert workload.matmul_parameters == matrices
    flops = model_flops(workload, 4096)
    assert flops.non_causal == 6 * matrices + 12 * 32 * 32 * 128 * 4096 == 46_084_915_200
    assert flops.causal == 6 * matrices + 6 * 32 * 32 * 128 * 4096


@pytest.mark.parametrize(
    ("name", "positions"), [("gpt2", 1024), ("opt-125m", 2048), ("llama-2-7b", None)]
)
def test_only_learned_positions_bound_the_length(name: str, positions: int | None) -> None:
    assert count_model(read_card(name)).positions == positions


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"model_type": "unheard-of"}, "transformers has no model type 'unheard-of'"),
        ({"parameters": 1}, "the model has 6,738,415,616 parameters, its card says 1"),
    ],
)
def test_a_card_that_is_not_understood_has_no_workload(
    changed: dict[str, object], problem: str
) -> None:
    counted = count_model(read_card("llama-2-7b").model_copy(update=changed))
    assert (counted.workload, counted.problem) == (None, problem)


def test_a_module_that_the_counter_does_not_know_is_the_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch import nn
    from transformers import AutoModelForCausalLM

    model = nn.Sequential(nn.Conv1d(2, 2, 2))
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", lambda config: model)
    card = read_card("gpt2").model_copy(update={"parameters": 2 * 2 * 2 + 2})
    counted = count_model(card)
    assert counted.workload is None
    assert counted.problem.startswith("FLOPs are not known: ")


def test_a_count_that_fails_or_hangs_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = read_card("opt-125m")
    broken = card.model_copy(update={"config": {**card.config, "hidden_size": "wide"}})
    with pytest.raises(AccelBenchError, match=r"^the model cannot be counted: .*hidden_size"):
        count.count_model(broken)
    monkeypatch.setattr(count, "COUNT_SECONDS", 0.01)
    with pytest.raises(AccelBenchError, match=r"cannot be counted: it has not ended after 0\.01 s"):
        count.count_model(card)
