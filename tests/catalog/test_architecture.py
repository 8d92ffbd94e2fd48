"""Figures of the catalog, worked out without torch, against the models that torch builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flop_counting import catalog_model, run_of

from accel_bench.catalog.architecture import read_architecture
from accel_bench.catalog.models import list_cards, read_card
from accel_bench.flops.formulas import model_flops
from accel_bench.flops.workload import Workload
from accel_bench.worker.flops.trace import read_workload

NAMES = tuple(list_cards())


def without_dtypes(workload: Workload | None) -> Workload:
    """A card says nothing about dtypes."""
    assert workload is not None
    matmuls = tuple(matmul.model_copy(update={"dtype": ""}) for matmul in workload.matmuls)
    return workload.model_copy(update={"matmuls": matmuls})


@pytest.mark.parametrize("name", NAMES)
def test_a_card_gives_the_parameters_that_are_published(name: str) -> None:
    card = read_card(name)
    found = read_architecture(card)
    assert found is not None
    assert found.parameters == card.parameters


@pytest.mark.parametrize("name", NAMES)
def test_a_card_gives_the_workload_that_the_worker_reads_from_the_modules(
    name: str, tmp_path: Path
) -> None:
    found = read_architecture(read_card(name))
    assert found is not None
    assert found.workload == without_dtypes(read_workload(run_of(catalog_model(name), tmp_path)))


def test_a_window_from_a_certain_layer_on_is_read_as_the_modules_have_it(tmp_path: Path) -> None:
    changes = {
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 3,
    }
    card = read_card("qwen2.5-7b")
    config = {**card.config, **changes}
    model = catalog_model("qwen2.5-7b", changes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = read_architecture(card.model_copy(update={"config": config, "parameters": parameters}))
    assert found is not None
    windows = [(attention.window, attention.count) for attention in found.workload.attentions]
    assert windows == [(None, 3), (64, 1)]
    assert found.workload == without_dtypes(read_workload(run_of(model, tmp_path)))


def test_llama_2_7b_costs_46_084_915_200_flops_for_a_token_at_4096_by_hand() -> None:
    found = read_architecture(read_card("llama-2-7b"))
    assert found is not None
    matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096
    assert found.workload.matmul_parameters == matrices
    flops = model_flops(found.workload, 4096)
    assert flops.non_causal == 6 * matrices + 12 * 32 * 32 * 128 * 4096 == 46_084_915_200
    assert flops.causal == 6 * matrices + 6 * 32 * 32 * 128 * 4096


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "unheard-of"},
        {"parameters": 1},
        {"config": {"vocab_size": 10}},
    ],
)
def test_a_card_that_is_not_understood_gives_nothing(changed: dict[str, object]) -> None:
    assert read_architecture(read_card("llama-2-7b").model_copy(update=changed)) is None


def test_working_it_out_imports_no_torch() -> None:
    program = (
        "import sys\n"
        "from accel_bench.catalog.architecture import read_architecture\n"
        "from accel_bench.catalog.models import read_card\n"
        "assert read_architecture(read_card('llama-2-7b'))\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
