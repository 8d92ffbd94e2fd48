"""Ranks with GPUs send tensors on the CPU too, and each kind of device has one word for how."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.distributed_c10d import Backend, BackendConfig

from accel_bench import Device
from accel_bench.machine.devices import device_type
from accel_bench.modeling.process_group import backend_of, backends_for


def test_ranks_on_gpus_can_reduce_what_is_offloaded() -> None:
    """torch makes of each name a backend for every kind of device that it is for."""
    config = BackendConfig(Backend(backends_for(device_type("cuda"))))
    assert config.get_device_backend_map() == {"cpu": "gloo", "cuda": "nccl"}
    assert backends_for(device_type("cpu")) == "gloo"
    assert backends_for(device_type("cuda"), "ucc") == "cpu:gloo,cuda:ucc"
    assert backends_for(device_type("cpu"), "mpi") == "mpi"


@pytest.mark.parametrize("given", ["gloo", "cpu:gloo"])
def test_the_backend_of_a_device_is_one_word(given: str) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(given, rank=0, world_size=1, store=store)
    try:
        assert torch.distributed.get_backend() == given
        assert backend_of(Device("cpu")) == "gloo"
    finally:
        torch.distributed.destroy_process_group()
