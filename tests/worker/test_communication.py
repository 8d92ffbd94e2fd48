"""Collectives of real ranks: bytes by arithmetic, waiting apart from them, who is late."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from analysis_factory import LORA, make_rank, make_result, make_summary
from kit import warnings_ignored
from torch import nn

from accel_bench.result import Communication
from accel_bench.worker.communication import CommunicationProbe

WIDTH = 64

WEIGHTS = WIDTH * WIDTH + WIDTH

SHORTEST = 0.03
"""Seconds for which a rank is late at least; it is three times a step of both ranks."""


def observe(step: Callable[[], object], steps: int = 2) -> Communication:
    """Take steps under observation, after one that is not observed."""
    step()
    probe = CommunicationProbe(lambda: None, steps)
    probe.start()
    for _ in range(steps):
        step()
        probe.end_step()
    probe.stop()
    step()  # is not counted any more
    found = probe.result()
    assert found is not None
    return found


def pass_on(rank: int) -> None:
    """Send from rank 0 to rank 1: an operation that ranks do not enter alike."""
    if rank == 0:
        torch.distributed.send(torch.ones(3), 1)
    else:
        torch.distributed.recv(torch.ones(3), 0)


def work(rank: int, folder: str) -> None:
    """Be one of two ranks: train replicated, sharded and split layers, and be late in turn."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    inputs = torch.ones(2, WIDTH)
    replicated = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    sharded = nn.Linear(WIDTH, WIDTH)
    fully_shard(sharded, mesh=mesh)
    split = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    parallelize_module(split, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    gathered = nn.Linear(WIDTH, WIDTH)
    parallelize_module(gathered, mesh, ColwiseParallel(output_layouts=Replicate()))
    models = {"replicated": replicated, "sharded": sharded, "split": split, "gathered": gathered}
    found: dict[str, Any] = {
        name: observe(lambda model=model: model(inputs).sum().backward())
        for name, model in models.items()
    }

    usual = torch.tensor(found["replicated"].step_seconds)
    torch.distributed.all_reduce(usual, torch.distributed.ReduceOp.MAX)
    pause = max(SHORTEST, 3 * float(usual))

    def late_step(late: int) -> None:
        if rank == late:
            time.sleep(pause)
        replicated(inputs).sum().backward()

    found["neighbours"] = observe(lambda: pass_on(rank))
    for number in range(20):
        found[f"late {number}"] = observe(lambda late=number % 2: late_step(late), steps=5)
    text = {name: one.model_dump(mode="json") for name, one in found.items()}
    Path(folder, f"{rank}.json").write_text(json.dumps(text), encoding="utf8")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Communication]]:
    """What two ranks have observed, by model and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    # Forked, so that they import nothing anew.
    with warnings_ignored():
        torch.multiprocessing.start_processes(work, (str(folder),), 2, start_method="fork")
    texts = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return {
        name: {rank: Communication(**text[name]) for rank, text in enumerate(texts)}
        for name in texts[0]
    }


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("replicated", "all_reduce", 4 * WEIGHTS),
        ("sharded", "all_gather", 4 * WEIGHTS),
        ("sharded", "reduce_scatter", 4 * WEIGHTS),
        ("split", "all_reduce", 4 * 2 * WIDTH),
        ("gathered", "all_gather", 4 * 2 * WIDTH),
    ],
)
def test_bytes_of_collectives_are_those_of_arithmetic(
    observed: Any, name: str, kind: str, size: int
) -> None:
    for found in observed[name].values():
        assert found.steps == 2
        assert (found.collectives[kind].calls, found.collectives[kind].bytes) == (1, size)
        assert 0 < found.collectives[kind].seconds < found.step_seconds
        assert found.seconds + found.waiting_seconds <= found.step_seconds * found.steps


def test_messages_between_two_ranks_are_left_alone(observed: Any) -> None:
    assert [one.collectives for one in observed["neighbours"].values()] == [{}, {}]


def stragglers(observed: dict[int, Communication]) -> tuple[int, ...]:
    """The ranks that the section of a run's ranks calls late."""
    ranks = [
        make_rank(rank=rank).model_copy(update={"communication": found})
        for rank, found in observed.items()
    ]
    summary = make_summary([LORA], [make_result(LORA, ranks=ranks)])
    (row,) = summary.sections["ranks"]
    late: tuple[int, ...] = row.stragglers
    return late


@pytest.mark.box
def test_a_planted_straggler_is_named_in_20_of_20(observed: Any) -> None:
    named = [stragglers(observed[f"late {n}"]) for n in range(20)]
    assert named == [(0,), (1,)] * 10
    waits = [observed[f"late {n}"][1 - n % 2].waiting_seconds for n in range(20)]
    assert min(waits) > SHORTEST / 2
