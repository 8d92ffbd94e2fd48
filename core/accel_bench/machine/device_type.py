"""The contract of device types: what core has to know of devices on which torch computes."""

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
"""Readings of an allocator: their names here, and in the `memory_stats` of torch's modules."""


class DeviceType:
    """A kind of device, such as `cuda`, that `resources.device` names.

    A distribution brings one by an entry point of the group `accel_bench.devices`, of that name.
    What is not overridden asks torch's module of the device type, such as `torch.cuda`, which all
    backends of torch have in common. The module of a description imports nothing heavy; torch is
    imported by then where a method says that it is called in a worker.
    """

    torch_type: ClassVar[str]
    """What `torch.device` takes, such as `cuda`."""

    label: ClassVar[str]
    """What people call it, as in `2 CUDA devices`."""

    preference: ClassVar[int] = 10
    """`resources.device: auto` means the type of highest preference that is here; a CPU has 0."""

    on_host: ClassVar[bool] = False
    """True if it computes in the host's memory, before a call returns."""

    process_group_backend: ClassVar[str] = "gloo"
    """Backend of `torch.distributed` by which ranks send tensors that lie on such devices."""

    autocast_dtypes: ClassVar[frozenset[str]] = frozenset({"bfloat16", "float16"})
    """Dtypes that autocast can compute in."""

    pins_memory: ClassVar[bool] = False
    """True if batches are copied to it from pinned memory of the host."""

    # In the parent, without torch.

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the names of the devices of this type that are here, in their order; imports
        nothing heavy."""
        raise NotImplementedError

    def driver(self, machine: Machine) -> str | None:
        """Return the version of the driver, which is part of an experiment's id; None where it is
        not known."""
        return None

    def lacks(self, torch_version: str) -> str:
        """Return why a torch of this version cannot use such devices; empty where it can."""
        return ""

    def peak_flops(self, name: str, dtype: str) -> float | None:
        """Return the dense peak of a device in FLOP/s, by its maker's name, for operands of a dtype
        of torch such as `bfloat16`; None where the table of devices is to be asked."""
        return None

    # In a worker, when torch has been imported.

    def prepare(self) -> None:
        """Import what torch needs for such devices; called once, before anything uses them."""

    def module(self) -> Any:
        """Return torch's module of this device type, such as `torch.cuda`."""
        return getattr(sys.modules["torch"], self.torch_type)

    def is_started(self) -> bool:
        """Return whether this process has used such a device; starts nothing."""
        module = getattr(sys.modules["torch"], self.torch_type, None)
        started = getattr(module, "is_initialized", None)
        return started is not None and bool(started())

    def use(self, index: int) -> None:
        """Make a device the current one of this process."""
        self.module().set_device(index)

    def identify(self, index: int) -> tuple[str, str]:
        """Return the maker's name of a device, and what tells it from others of that name."""
        properties = self.module().get_device_properties(index)
        return str(properties.name), str(getattr(properties, "uuid", ""))

    def synchronize(self) -> None:
        """Wait until the current device has done all work that was given to it."""
        self.module().synchronize()

    def make_event(self) -> Any:
        """Return an event that times: with `record()` and `elapsed_time(later)` in milliseconds.

        None where such devices have none: steps are then timed on the host's clock alone.
        """
        return self._asked("Event", enable_timing=True)

    def memory(self) -> dict[str, int]:
        """Return the readings of the allocator of the current device that it has, of `READINGS`.

        Does not synchronise.
        """
        found = self._asked("memory_stats") or {}
        return {name: found[key] for name, key in READINGS.items() if key in found}

    def reset_peak_memory(self) -> None:
        """Begin new peaks of the allocator of the current device, where it has peaks."""
        self._asked("reset_peak_memory_stats")

    def empty_cache(self) -> None:
        """Give free memory of the allocator back to the device, where it keeps any."""
        self._asked("empty_cache")

    def free_memory(self) -> tuple[int, int] | None:
        """Return the free and the total bytes of the current device; None where it says neither."""
        found: tuple[int, int] | None = self._asked("mem_get_info")
        return found

    def allocation_retries(self) -> int:
        """Return how often the allocator has given its free memory back in order to go on."""
        return int((self._asked("memory_stats") or {}).get("num_alloc_retries", 0))

    @contextlib.contextmanager
    def keep_random_state(self, index: int) -> Iterator[None]:
        """Put the random state of the host and of a device back after the block."""
        import torch

        with torch.random.fork_rng(devices=[index], device_type=self.torch_type):
            yield

    def _asked(self, name: str, **arguments: Any) -> Any:
        """Return what a function of torch's module returns; None where it has none of that name."""
        function = getattr(self.module(), name, None)
        return None if function is None else function(**arguments)
