"""Device type `cpu`: the processor of the host."""

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
        """Return False, so that torch is asked for no allocator statistics, which a CPU lacks."""
        return False

    def use(self, index: int) -> None:
        """Do nothing, as there is one CPU device."""

    def identify(self, index: int) -> tuple[str, str]:
        """Return `cpu` and an empty name: the machine's description has the processor's name."""
        return "cpu", ""

    def synchronize(self) -> None:
        """Do nothing, as calls on a CPU are synchronous."""

    def make_event(self) -> None:
        """Return None, as a CPU has no device events: the host's clock times the steps."""

    @contextlib.contextmanager
    def keep_random_state(self, index: int) -> Iterator[None]:
        """Restore the host's random state after the `with` block."""
        import torch

        with torch.random.fork_rng(devices=[]):
            yield
