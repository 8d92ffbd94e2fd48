"""The device type `mps`: the GPU of Apple's chips, by Metal."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from accel_bench import DeviceType, Machine


class MPS(DeviceType):
    """Device type of an Apple chip's GPU, which shares the host's memory; peaks are unknown."""

    torch_type = "mps"
    label = "MPS"
    preference = 20

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the name of the Apple chip in a list; an empty list on other machines."""
        here = machine.system.startswith("Darwin") and platform.machine() == "arm64"
        return [machine.processor] if here else []

    def driver(self, machine: Machine) -> str | None:
        """Return the version of macOS, which Metal is a part of."""
        return machine.system

    def use(self, index: int) -> None:
        """Do nothing, since there is only one GPU."""

    def is_started(self) -> bool:
        """Return whether torch has tensors on the GPU; only then does the GPU count as started."""
        if sys.platform != "darwin":
            return False
        import torch

        here = torch.backends.mps.is_available()
        return here and bool(self.module().current_allocated_memory())

    def identify(self, index: int) -> tuple[str, str]:
        """Return Metal's name of the GPU, and an empty text in place of an id."""
        name = getattr(self.module(), "get_name", None)
        return (str(name()) if name else platform.processor() or "mps"), ""

    def memory(self) -> dict[str, int]:
        """Return the bytes that tensors now use and that the driver has now allocated."""
        module = self.module()
        return {
            "device_allocated_bytes": int(module.current_allocated_memory()),
            "device_reserved_bytes": int(module.driver_allocated_memory()),
        }

    def free_memory(self) -> tuple[int, int] | None:
        """Return the free and the total bytes of the memory that Metal recommends to use."""
        module = self.module()
        total = int(module.recommended_max_memory())
        return total - int(module.driver_allocated_memory()), total

    @contextlib.contextmanager
    def keep_random_state(self, index: int) -> Iterator[None]:
        """Restore the random state of the host and of the GPU after the block."""
        import torch

        module: Any = self.module()
        state = module.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            try:
                yield
            finally:
                module.set_rng_state(state)
