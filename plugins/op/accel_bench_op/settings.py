"""Settings of a pytest run from environment variables: device, dtype and cache flush."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.devices import device_type, device_types
from accel_bench.machine.info import read_machine
from accel_bench_op.benchmark import as_dtype

PREFIX = "ACCEL_BENCH_MICRO_"


def read_arguments(variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return benchmarks' arguments `device` and `dtype`, read from environment variables.

    `ACCEL_BENCH_MICRO_DEVICE` is a name such as `cuda` or `cuda:1`, by default the device that
    `auto` selects. `ACCEL_BENCH_MICRO_DTYPE` is optional. The device is also prepared for use in
    this process.
    """
    device = variables.get(f"{PREFIX}DEVICE") or read_machine().device
    arguments: dict[str, Any] = {"device": prepare_device(device)}
    if dtype := variables.get(f"{PREFIX}DTYPE"):
        arguments["dtype"] = as_dtype(dtype)
    return arguments


def reads_flush(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether `ACCEL_BENCH_MICRO_FLUSH_CACHE` requests a cache flush before each round.

    Raises PluginError for an invalid value.
    """
    flush = variables.get(f"{PREFIX}FLUSH_CACHE", "0")
    if flush not in ("0", "1"):
        raise PluginError(f"{PREFIX}FLUSH_CACHE is {flush!r}; write 1, or 0")
    return flush == "1"


def torch_name(name: str) -> str:
    """Return torch's name of a device: `cuda:1` for `rocm:1`. Unknown names are unchanged."""
    kind, colon, index = name.partition(":")
    known = device_types().get(kind)
    return name if known is None else f"{known.torch_type}{colon}{index}"


def prepare_device(name: str) -> str:
    """Prepare a device for use in this process, and return torch's name of the device.

    The device becomes the current device if `name` has an index. Raises ScenarioError for an
    unknown type of device, and for a device that torch cannot use.
    """
    kind, _, index = name.partition(":")
    known = _prepared(kind)
    if index:
        known.use(int(index))
    return torch_name(name)


@cache
def _prepared(kind: str) -> DeviceType:
    """Prepare a type of device for use in this process, and return it.

    Raises ScenarioError for an unknown type, and if torch cannot use it.
    """
    import torch

    device = device_type(kind)
    if reason := device.lacks(str(torch.__version__)):
        raise ScenarioError(f"nothing can run on device {kind!r}: {reason}")
    device.prepare()
    return device
