"""How ranks are really joined: buffers that travel, wrappers around wrappers, other strategies."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from accel_bench_torch.ddp import DDP, DDPOptions
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from accel_bench import Run
from accel_bench.worker.verify.effective import differences, read_effective

# A group of one rank: gloo says that it is of little use, and DDP that nothing is to be reduced.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    yield
    torch.distributed.destroy_process_group()


def test_torch_s_own_default_sends_buffers_every_step_and_is_named(
    llama_run: Callable[..., Run],
) -> None:
    run = llama_run()
    run.model = DistributedDataParallel(run.model)
    sent = sum(b.numel() * b.element_size() for b in run.unwrapped_model.buffers())
    degraded, invalid = differences(run, read_effective(run), DDP.strategy)
    assert sent > 0
    assert degraded == [f"the ranks send one another {sent} bytes of buffers before every forward"]
    assert invalid == []


def test_our_ddp_sends_no_buffers(llama_run: Callable[..., Run]) -> None:
    run = llama_run()
    run.model = DDP(DDPOptions()).parallelize_model(run)
    assert read_effective(run).synchronized_buffer_bytes == 0
    assert differences(run, read_effective(run), DDP.strategy) == ([], [])


def test_a_model_that_an_engine_wraps_again_is_invalid_though_nobody_says_so(
    llama_run: Callable[..., Run],
) -> None:
    """`run.model` is still what the plugin made; the engine calls another object."""
    run = llama_run()
    run.model = DDP(DDPOptions()).parallelize_model(run)
    outer = DistributedDataParallel(run.model)
    _, invalid = differences(run, read_effective(run), DDP.strategy)
    assert invalid == [
        "the model is wrapped twice: DistributedDataParallel around DistributedDataParallel"
    ]
    del outer


def test_an_engine_that_wraps_a_bare_model_is_seen(llama_run: Callable[..., Run]) -> None:
    run = llama_run()
    outer = DistributedDataParallel(run.model)
    assert run.model is run.unwrapped_model
    assert read_effective(run).strategy == "DistributedDataParallel"
    del outer


def test_sharding_block_by_block_is_one_strategy_and_no_nesting(
    llama_run: Callable[..., Run],
) -> None:
    run = llama_run()
    for layer in run.model.model.layers:
        fully_shard(layer, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    fully_shard(run.model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    effective = read_effective(run)
    assert (effective.strategy, effective.nested_wrapping) == ("FSDPModule", ())


def test_a_plugin_that_claims_one_strategy_and_makes_another_is_invalid(
    llama_run: Callable[..., Run],
) -> None:
    run = llama_run()
    run.model = DDP(DDPOptions()).parallelize_model(run)
    _, invalid = differences(run, read_effective(run), "FSDPModule")
    assert invalid == ["the strategy is DistributedDataParallel, and its plugin says FSDPModule"]


def test_a_wrapper_of_another_model_is_not_this_one_s(llama_run: Callable[..., Run]) -> None:
    run = llama_run()
    with warnings.catch_warnings():
        other = DistributedDataParallel(nn.Linear(2, 2))
    assert read_effective(run).strategy == "none"
    del other
