"""Device and dtype of the cells that are timed, from the environment of a pytest run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.devices import device_type, device_types
from accel_bench.machine.info import read_machine
from accel_bench_op.benchmark import as_dtype

PREFIX = "ACCEL_BENCH_MICRO_"


@dataclass(frozen=True)
class MicroSettings:
    """Settings by which cells are timed."""

    device: str = ""
    """As `resources.device`, such as `cuda`, or one of several: `cuda:1`. Empty is `auto`."""

    dtype: str = ""
    """Empty is the benchmark's own."""

    flush_cache: bool = False
    """True if a device's cache is emptied before each round."""

    def arguments(self) -> dict[str, Any]:
        """Return `device` and `dtype`, as `__init__` of a benchmark may take them.

        The device may be used from then on.
        """
        found: dict[str, Any] = {"device": prepare_device(self.device or read_machine().device)}
        if self.dtype:
            found["dtype"] = as_dtype(self.dtype)
        return found


def read_settings(variables: Mapping[str, str] = os.environ) -> MicroSettings:
    """Return the settings in `ACCEL_BENCH_MICRO_DEVICE`, `_DTYPE` and `_FLUSH_CACHE`.

    Raises PluginError for a value that means nothing.
    """
    flush = variables.get(f"{PREFIX}FLUSH_CACHE", "0")
    if flush not in ("0", "1"):
        raise PluginError(f"{PREFIX}FLUSH_CACHE is {flush!r}; write 1, or 0")
    return MicroSettings(
        device=variables.get(f"{PREFIX}DEVICE", ""),
        dtype=variables.get(f"{PREFIX}DTYPE", ""),
        flush_cache=flush == "1",
    )


def torch_name(name: str) -> str:
    """Return what torch calls a device such as `rocm:1`: `cuda:1`; a name of torch's as it is."""
    kind, colon, index = name.partition(":")
    known = device_types().get(kind)
    return name if known is None else f"{known.torch_type}{colon}{index}"


def prepare_device(name: str) -> str:
    """Return what torch calls a device, which this process may use; with a number it is current.

    Raises ScenarioError for a type of device that nothing installed describes, and for one that
    torch cannot use.
    """
    kind, _, index = name.partition(":")
    known = _prepared(kind)
    if index:
        known.use(int(index))
    return torch_name(name)


@cache
def _prepared(kind: str) -> DeviceType:
    """Return a type of device that this process may use. Raises ScenarioError as above."""
    import torch

    device = device_type(kind)
    if reason := device.lacks(str(torch.__version__)):
        raise ScenarioError(f"nothing can run on device {kind!r}: {reason}")
    device.prepare()
    return device
