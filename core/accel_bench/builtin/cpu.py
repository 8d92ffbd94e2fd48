"""The device type `cpu`, the host itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

from accel_bench import DeviceType, Machine


class CPU(DeviceType):
    """The host's CPU, which computes synchronously in the host's memory."""

    torch_type = "cpu"
    label = "CPU"
    preference = 0
    on_host = True
    autocast_dtypes: ClassVar[frozenset[str]] = frozenset({"bfloat16"})

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the name of the machine's processor, its only device of this type."""
        return [machine.processor]

    def is_started(self) -> bool:
        """Return false: torch has no allocator statistics for a CPU."""
        return False

    def use(self, index: int) -> None:
        """Do nothing, as there is one CPU device."""

    def identify(self, index: int) -> tuple[str, str]:
        """Return `cpu` without a name: the machine's description has the processor's."""
        return "cpu", ""

    def synchronize(self) -> None:
        """Do nothing, as calls are synchronous."""

    def make_event(self) -> None:
        """Return None: the host's clock is the device's."""

    @contextlib.contextmanager
    def keep_random_state(self, index: int) -> Iterator[None]:
        """Restore the host's random state after the block."""
        import torch

        with torch.random.fork_rng(devices=[]):
            yield
