"""Quantized bases in the ledger of a step: their products count, and repeats differ by nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call
from several_ranks.scenarios import forking

from accel_bench.testing import make_run

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

MODEL = {"id": "tiny-llama-cpu", "dtype": "bfloat16", "overrides": {"num_hidden_layers": 1}}

SCENARIO: dict[str, Any] = {
    "name": "counted",
    "model": MODEL,
    "adapter": {"use": "lora", "r": 4},
    "data": {"use": "synthetic", "sequence_length": 32},
    "train": {"micro_batch_size": 1},
    "resources": {"device": "cpu", "threads": 1},
    "stacks": {
        "lora": [],
        "nf4": [{"use": "bitsandbytes", "quant_type": "nf4"}],
        "gptq": [{"use": "autogptq", "group_size": 32}],
        "int8": [{"use": "torchao", "weights": "int8"}],
    },
    "baseline": "lora",
}


def test_torch_counts_the_products_of_a_packed_base(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    import torch
    from accel_bench_bitsandbytes import BitsAndBytes
    from torch.utils.flop_counter import FlopCounterMode

    from accel_bench import load_base_model

    def flops(model: Any) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(2, 16, dtype=torch.long))
        return int(counter.get_total_flops())

    run = make_run(tmp_path, {"model": MODEL, "data": {"sequence_length": 16}})
    plugin = BitsAndBytes(BitsAndBytes.Options(quant_type="nf4"), "bitsandbytes")
    assert flops(plugin.load_model(run)) == flops(load_base_model(run)) > 0


def count(scenario: Path, *words: str) -> Done:
    options = ("--set", "launcher=forking", "--format", "json")
    return call("scenarios", "count", str(scenario), *words, *options)


@pytest.mark.release
def test_every_quantized_base_is_counted_and_the_same_again(tmp_path: Path) -> None:
    for package in ("bitsandbytes", "gptqmodel", "torchao"):
        pytest.importorskip(package)
    scenario, flops = tmp_path / "counted.yaml", {}
    scenario.write_text(json.dumps(SCENARIO), encoding="utf8")
    with forking(tmp_path / "launcher"):
        for stack in SCENARIO["stacks"]:
            saved = str(tmp_path / f"{stack}.json")
            first = count(scenario, "--stack", stack, "--save", saved)
            assert first.code == 0, first.err
            entries = json.loads(first.out)["entries"]
            flops[stack] = sum(one["figures"].get("flops", 0) for one in entries)
            again = count(scenario, "--stack", stack, "--against", saved)
            found = json.loads(again.out)
            assert (again.code, found["rose"], found["fell"]) == (0, [], [])
    assert flops["lora"] > 0
    assert set(flops.values()) == {flops["lora"]}
