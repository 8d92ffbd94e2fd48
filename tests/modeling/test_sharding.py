"""One norm over tensors that are sharded in several ways, and steps without synchronisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from accel_bench.modeling.sharding import (
    clip_gradients,
    gradient_on_this_rank,
    without_gradient_sync,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A process group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    torch.distributed.destroy_process_group()


def parameter(values: torch.Tensor, gradient: torch.Tensor) -> nn.Parameter:
    made = nn.Parameter(values)
    made.grad = gradient
    return made


def test_tensors_of_several_meshes_and_plain_ones_are_clipped_by_one_norm() -> None:
    mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    gradients = [torch.full((2, 2), value) for value in (1.0, 2.0, 3.0)]
    meshes = (mesh["a"], mesh["b"])
    sharded = [
        parameter(*(distribute_tensor(one, where, [Shard(0)]) for one in (gradient, gradient)))
        for gradient, where in zip(gradients, meshes, strict=False)
    ]
    together = [*sharded, parameter(gradients[2].clone(), gradients[2].clone())]
    plain = [parameter(one.clone(), one.clone()) for one in gradients]
    expected = nn.utils.clip_grad_norm_(plain, 1.5)
    assert float(clip_gradients(together, 1.5)) == pytest.approx(float(expected))
    for one, other in zip(together, plain, strict=True):
        assert torch.allclose(gradient_on_this_rank(one), other.grad)


def test_a_gradient_that_is_divided_otherwise_is_that_of_the_parameter_s_part() -> None:
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    values = torch.arange(4.0).reshape(2, 2)
    whole = distribute_tensor(values, mesh, [Replicate()])
    found = gradient_on_this_rank(parameter(distribute_tensor(values, mesh, [Shard(0)]), whole))
    assert torch.equal(found, values)


def test_gradients_are_averaged_in_the_last_micro_batch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    averaged: list[int] = []
    real = _fsdp_param_group.foreach_reduce

    def counted(*arguments: Any, **more: Any) -> Any:
        averaged.append(1)
        return real(*arguments, **more)

    monkeypatch.setattr(_fsdp_param_group, "foreach_reduce", counted)
    model = fully_shard(nn.Linear(2, 2))
    no_sync = without_gradient_sync(model)
    for _ in range(2):
        with no_sync():
            model(torch.ones(1, 2)).sum().backward()
    assert averaged == []
    model(torch.ones(1, 2)).sum().backward()
    assert averaged == [1]
    assert torch.equal(model.weight.grad.full_tensor(), torch.full((2, 2), 3.0))


def test_a_plain_model_has_nothing_to_hold_back() -> None:
    with without_gradient_sync(nn.Linear(1, 1))():
        pass
