"""Quantized bases under FSDP2, in the environment with quantization libraries."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bench import Status

pytestmark = [pytest.mark.long, pytest.mark.release]

MASTER = {"set": {"train.precision": "bf16-master-weights"}}


def test_packed_weights_are_sharded_and_gathered_as_they_are(
    tmp_path: Path, ranks: SimpleNamespace
) -> None:
    """nf4 trains as under DDP, in any storage; formats that would be corrupted are refused."""
    pytest.importorskip("bitsandbytes")
    nf4, stored = "bitsandbytes", {"use": "bitsandbytes", "quant_storage": "float32"}
    int8 = {"use": "bitsandbytes", "quant_type": "int8"}
    stacks: dict[str, Any] = {
        "ddp": [nf4],
        "fsdp2": [nf4, "mesh"],
        "stored": [stored, "mesh"],
        "master": {**MASTER, "use": [nf4, "mesh"]},
        "int8": [int8, "mesh"],
        "copied": {**MASTER, "use": [stored, "mesh"]},
        "tensor": [nf4, {"use": "mesh", "tensor": 2}],
    }
    adapter = {"use": "lora", "r": 4}
    found = ranks.run(tmp_path, ranks.write(tmp_path, "two", 2, stacks, adapter=adapter))["two"]
    for name in ("fsdp2", "stored"):
        ranks.assert_same_training(found["ddp"], found[name])
        effective = found[name].ranks[0].effective
        assert effective.held_elements * 2 == sum(effective.sharding.values())
    assert ranks.compared(found["ddp"], found["master"]).update_difference < 0.05
    for name, reason in {
        "int8": "is a Int8Params, which FSDP2 cannot gather",
        "copied": "holds packed bits as float32, and copies of the weights are bfloat16",
        "tensor": "is a Linear4bit, and torch's tensor parallelism divides plain linear layers",
    }.items():
        assert found[name].status is Status.FAILED
        assert reason in " ".join(found[name].reasons)
