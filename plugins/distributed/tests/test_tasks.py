"""Real ranks on gloo against one process, for every task: the same losses and update.

As in `test_ranks.py`, which has a short case of the last, with SGD and clipping. Losses that tell the samples of a micro-batch apart
are compared between strategies: the micro-batches of two ranks are none of one process.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from task_works import ALL, BY_MICRO_BATCH, DPO

pytestmark = [pytest.mark.long, pytest.mark.release]

LORA: dict[str, Any] = {"adapter": {"use": "lora", "r": 4}}

TENSOR = {"use": "mesh", "tensor": 2}


def test_policy_and_reference_are_divided_each_by_its_own_size(
    tmp_path: Path, ranks: SimpleNamespace
) -> None:
    """Four devices: both numbers, in every order, and a reference that is another model."""

    def task(size: int, **options: Any) -> dict[str, Any]:
        return {"task": {**DPO["task"], "reference_tensor_parallel_size": size, **options}}

    named = {"reference_model": "tiny-llama-cpu"}
    other = {**DPO, "model": {"id": "tiny-llama-cpu"}}
    del other["task"]
    stacks = {"fsdp2": ["mesh"], "tensor": [{**TENSOR, "shard": 2}]}
    found = ranks.run(
        tmp_path,
        ranks.write(tmp_path, "one", 1, {"alone": []}, **DPO),
        ranks.write(tmp_path, "whole", 4, stacks, **DPO),
        ranks.write(tmp_path, "by2", 4, stacks, **{**DPO, **task(2)}),
        ranks.write(tmp_path, "named-one", 1, {"alone": []}, **other, **task(1, **named)),
        ranks.write(tmp_path, "named", 4, stacks, **other, **task(2, **named)),
    )
    for name in ("whole", "by2", "named"):
        alone = found["named-one" if name == "named" else "one"]["alone"]
        for together in found[name].values():
            ranks.assert_same_training(alone, together, 1e-5)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["all", "lora"])
@pytest.mark.parametrize("task", ALL)
def test_two_ranks_train_each_task_as_one_process_does(
    task: str, adapter: dict[str, Any], tmp_path: Path, ranks: SimpleNamespace
) -> None:
    work = {**ALL[task], **adapter}
    stacks: dict[str, Any] = {
        "ddp": [],
        "fsdp2": ["mesh"],
        "zero2": [{"use": "mesh", "reshard_after_forward": False}],
        **({"tensor": [TENSOR]} if task == "dpo" else {}),
    }
    found = ranks.run(
        tmp_path,
        ranks.write(tmp_path, "one", 1, {"alone": []}, **work),
        ranks.write(tmp_path, "two", 2, stacks, **work),
    )
    alone = found["two"]["ddp"] if task in BY_MICRO_BATCH else found["one"]["alone"]
    for together in found["two"].values():
        ranks.assert_same_training(alone, together, 1e-5)
