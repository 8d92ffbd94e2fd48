"""Real ranks on gloo against one process, for every task: the same losses and update.

As in `test_ranks.py`, which has a short case, with SGD and clipping. Losses that tell the samples
of a micro-batch apart are compared between strategies, and DDP with nothing: two ranks take turns
at the samples of a step, so that their micro-batches are none of one process.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from task_works import ALL, BY_MICRO_BATCH, DPO

from accel_bench import Result

pytestmark = [pytest.mark.long, pytest.mark.release]

TENSOR = {"use": "mesh", "tensor": 2}


def test_policy_and_reference_are_divided_each_by_its_own_size(
    tmp_path: Path, ranks: SimpleNamespace
) -> None:
    """Four devices: both sizes, in every order, and a reference that is another model."""

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


STACKS: dict[str, Any] = {
    "ddp": [],
    "fsdp2": ["mesh"],
    "zero2": [{"use": "mesh", "reshard_after_forward": False}],
}

ADAPTERS: dict[str, dict[str, Any]] = {"all": {}, "lora": {"adapter": {"use": "lora", "r": 4}}}


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, ranks: SimpleNamespace
) -> dict[str, dict[str, Result]]:
    """Results of each task, with all weights and with adapters, by one process and by two ranks."""
    folder = tmp_path_factory.mktemp("tasks")
    paths = []
    for adapter, changes in ADAPTERS.items():
        for task, work in ALL.items():
            name, stacks = f"{task}-{adapter}", {**STACKS}
            if task == "dpo":
                stacks["tensor"] = [TENSOR]
            paths.append(ranks.write(folder, f"{name}-1", 1, {"alone": []}, **work, **changes))
            paths.append(ranks.write(folder, f"{name}-2", 2, stacks, **work, **changes))
    return ranks.run(folder, *paths)


@pytest.mark.parametrize("stack", [*STACKS, "tensor"])
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("task", ALL)
def test_two_ranks_train_each_task_as_one_process_does(
    task: str,
    adapter: str,
    stack: str,
    results: dict[str, dict[str, Result]],
    ranks: SimpleNamespace,
) -> None:
    if stack == "tensor" and task != "dpo":
        pytest.skip("no plan of transformers for the model")
    if stack == "ddp" and task in BY_MICRO_BATCH:
        pytest.skip("no process alone has its micro-batches")
    two = results[f"{task}-{adapter}-2"]
    alone = two["ddp"] if task in BY_MICRO_BATCH else results[f"{task}-{adapter}-1"]["alone"]
    ranks.assert_same_training(alone, two[stack], 1e-5)
