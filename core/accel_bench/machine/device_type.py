"""Interface of device types on which torch computes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from accel_bench.machine.info import Machine

READINGS = {
    "device_allocated_bytes": "allocated_bytes.all.current",
    "device_peak_allocated_bytes": "allocated_bytes.all.peak",
    "device_reserved_bytes": "reserved_bytes.all.current",
    "device_peak_reserved_bytes": "reserved_bytes.all.peak",
    "device_peak_inactive_split_bytes": "inactive_split_bytes.all.peak",
}
"""Memory readings by name, each with its key in `memory_stats()` of modules like `torch.cuda`."""


class DeviceType:
    """Type of device, such as `cuda`, named by `resources.device`.

    A distribution adds a type by an entry point with the type's name in `accel_bench.devices`. By
    default, methods call functions that every backend of torch has in its module, such as
    `torch.cuda`. A module that defines a type imports nothing heavy. `find`, `driver`, `lacks` and
    `peak_flops` are called in the parent, without torch, and all other methods in a worker that has
    imported torch.
    """

    torch_type: ClassVar[str]
    """Type name for `torch.device`, such as `cuda`."""

    label: ClassVar[str]
    """Name of the type for people, as in `2 CUDA devices`."""

    preference: ClassVar[int] = 10
    """Priority for `resources.device: auto`, which selects the highest usable type; a CPU has 0."""

    on_host: ClassVar[bool] = False
    """True for devices that compute synchronously in the host's memory."""

    process_group_backend: ClassVar[str] = "gloo"
    """Backend of `torch.distributed` for tensors on such devices."""

    autocast_dtypes: ClassVar[frozenset[str]] = frozenset({"bfloat16", "float16"})
    """Dtypes that autocast supports on such devices."""

    pins_memory: ClassVar[bool] = False
    """True if batches are copied to such devices from pinned host memory."""

    # In the parent, without torch.

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the names of a machine's devices of this type, ordered by device index."""
        raise NotImplementedError

    def driver(self, machine: Machine) -> str | None:
        """Return the driver's version, which is part of an experiment's id; None if unknown."""
        return None

    def lacks(self, torch_version: str) -> str:
        """Return the reason why a torch version cannot use such devices; empty if it can."""
        return ""

    def peak_flops(self, name: str, dtype: str) -> float | None:
        """Return the dense peak in FLOP/s of the device model `name`, for operands of a torch dtype
        such as `bfloat16`; None to use the shipped table of devices."""
        return None

    # In a worker, when torch has been imported.

    def prepare(self) -> None:
        """Import modules that torch needs for such devices; called once, before their first use."""

    def module(self) -> Any:
        """Return torch's module of this device type, such as `torch.cuda`."""
        return getattr(sys.modules["torch"], self.torch_type)

    def is_started(self) -> bool:
        """Return whether torch has initialized such devices in this process."""
        module = getattr(sys.modules["torch"], self.torch_type, None)
        started = getattr(module, "is_initialized", None)
        return started is not None and bool(started())

    def use(self, index: int) -> None:
        """Make the device with this index the current device of this process."""
        self.module().set_device(index)

    def identify(self, index: int) -> tuple[str, str]:
        """Return the maker's name of a device, and its unique id."""
        properties = self.module().get_device_properties(index)
        return str(properties.name), str(getattr(properties, "uuid", ""))

    def synchronize(self) -> None:
        """Wait until the current device has done all submitted work."""
        self.module().synchronize()

    def make_event(self) -> Any:
        """Return a timing event, with `record()` and `elapsed_time(later)` in milliseconds.

        Returns None for devices without events, whose steps the host's clock alone times.
        """
        return self._asked("Event", enable_timing=True)

    def memory(self) -> dict[str, int]:
        """Return the current device's allocator readings in bytes, by their names in `READINGS`.

        Readings that the allocator lacks are left out. Does not synchronise.
        """
        stats = self._asked("memory_stats") or {}
        return {name: stats[key] for name, key in READINGS.items() if key in stats}

    def reset_peak_memory(self) -> None:
        """Reset the peak readings of the current device's allocator, if it has any."""
        self._asked("reset_peak_memory_stats")

    def empty_cache(self) -> None:
        """Return cached memory of the allocator to the device, if it has a cache."""
        self._asked("empty_cache")

    def free_memory(self) -> tuple[int, int] | None:
        """Return the free and the total bytes of the current device; None if unknown."""
        sizes: tuple[int, int] | None = self._asked("mem_get_info")
        return sizes

    def allocation_retries(self) -> int:
        """Return how many times the allocator flushed its cache to retry an allocation."""
        return int((self._asked("memory_stats") or {}).get("num_alloc_retries", 0))

    @contextlib.contextmanager
    def keep_random_state(self, index: int) -> Iterator[None]:
        """Restore the random state of the host, and of device number `index`, after the block."""
        import torch

        with torch.random.fork_rng(devices=[index], device_type=self.torch_type):
            yield

    def _asked(self, name: str, **arguments: Any) -> Any:
        function = getattr(self.module(), name, None)
        return None if function is None else function(**arguments)
